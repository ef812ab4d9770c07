"""What a stack's kernels and habits cost: each constant slows what it is about, nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.cost import Beside, Pricer, estimated_lines
from autoplan.cost.compute import Processor
from autoplan.cost.uncertainty import NARROWEST, half_width
from autoplan.ir.machine import NEUTRAL, Evidence
from autoplan.ir.program import COLLECTIVES, Instr, Register, Segment
from autoplan.ops import FAMILIES
from autoplan.ops.attention import BACKWARD_PASSES, FORWARD_PASSES
from tests.cost.machines import FAST, OWN_NIC, STACK, cluster


def stack(habits: tuple[str, ...] = (), **constants: float):
    return replace(STACK, constants={**STACK.constants, **constants}, habits=habits)


def attention(family: str, s: int = 1024):
    """Work of an attention over s positions, 16 heads of 64."""
    q, lse = Register("q", (1, s, 16, 1, 64), "bf16", ""), Register("l", (1, s, 16, 1), "fp32", "")
    kv = Register("k", (1, s, 16, 64), "bf16", "")
    ins = [q, kv, kv] if family == "attention" else [q, q, kv, kv, q, lse]
    outs = [q, lse] if family == "attention" else [q, kv, kv]
    names = tuple(range(len(ins))), tuple(range(len(ins), len(ins) + len(outs)))
    instr = Instr(family, *names, (("causal", True),))
    return FAMILIES[family].measure(instr, ins, outs)


@pytest.mark.parametrize("family", ["attention", "attention_grad"])
def test_plain_attention_computes_masked_scores_and_moves_all_of_them(family):
    work = attention(family)
    fused = Processor(cluster(), stack()).work_seconds(work, "bf16")
    times = [
        Processor(cluster(), stack(score_traffic=traffic)).work_seconds(work, "bf16")
        for traffic in (0.5, 1.0, 2.0)
    ]
    assert times[2] > times[1] > times[0]
    assert times[1] > fused
    moved = cluster().device.memory_bandwidth * cluster().device.memory_efficiency
    assert times[2] - times[1] == pytest.approx(work.score_bytes / moved)


def test_scores_that_are_computed_again_cost_a_forward_pass():
    again = stack(("recompute_scores",), score_traffic=1.0)
    plain = stack(score_traffic=1.0)
    forward, backward = attention("attention"), attention("attention_grad")
    assert forward.score_bytes / backward.score_bytes == FORWARD_PASSES / BACKWARD_PASSES
    for work, slower in ((forward, False), (backward, True)):
        seconds = [Processor(cluster(), s).work_seconds(work, "bf16") for s in (again, plain)]
        assert (seconds[0] > seconds[1]) == slower


def test_the_loss_and_pointwise_operators_have_factors_of_their_own():
    logits = Register("x", (1, 64, 1000), "bf16", "")
    stats, ids = Register("s", (1, 64, 2), "fp32", ""), Register("i", (1, 64), "int64", "")
    loss = FAMILIES["xent_stats"].measure(Instr("xent_stats", (0, 1), (2,)), [logits, ids], [stats])
    add = FAMILIES["add"].measure(Instr("add", (0, 1), (2,)), [logits, logits], [logits])
    factors = {"loss_factor": loss, "pointwise_factor": add}
    for name, work in factors.items():
        for constant in factors:
            base = Processor(cluster(), stack()).work_seconds(work, "bf16")
            value = 3 * stack().constants[constant]
            more = Processor(cluster(), stack(**{constant: value})).work_seconds(work, "bf16")
            assert (more > base) == (constant == name)


def test_a_stack_drives_links_between_nodes_worse_and_no_others():
    hardware = cluster()
    slow, fast = Pricer(hardware, stack(network_efficiency=0.5)), Pricer(hardware, stack())
    inside, across = ((0, 1, 2, 3),), ((0, 8, 16, 24),)
    assert slow.group_terms("all_reduce", inside) == fast.group_terms("all_reduce", inside)
    rates = [p.group_terms("all_reduce", across).seconds_per_byte for p in (slow, fast)]
    assert rates[0] == pytest.approx(2 * rates[1])


def test_gradients_are_exchanged_beside_backward_unless_the_stack_waits():
    """Where it waits, it does so for gradients of split states, or for all."""

    def beside(*habits: str) -> dict[str, bool]:
        pricer = Pricer(cluster(), stack(habits))
        kinds = {op: Segment(op, (), (), (Instr(op, (), ()),)) for op in COLLECTIVES}
        assert not pricer.runs_beside("F", kinds["all_reduce"])
        assert pricer.runs_beside("GATHER", kinds["all_gather"])
        return {op: pricer.runs_beside("REDUCE", segment) for op, segment in kinds.items()}

    assert all(beside().values())
    assert not beside("late_exchange").pop("reduce_scatter")
    assert beside("late_exchange")["all_reduce"]
    assert not any(beside("lone_exchange").values())


def test_a_fabric_that_declines_slows_collectives_by_the_machines_nodes_and_no_transfer():
    for nodes in (1, 2, 3, 4):
        hardware = cluster(FAST, replace(OWN_NIC, size=nodes))
        full, tired = (Pricer(hardware, stack(**c)) for c in ({}, {"network_decline": 0.5}))
        last = hardware.count - 1
        assert tired.transfer_seconds(1e6, 0, last) == full.transfer_seconds(1e6, 0, last)
        for kind in COLLECTIVES:
            for group, crosses in (((0, 1), False), ((0, last), nodes > 1)):
                slopes = [p.group_terms(kind, (group,)).seconds_per_byte for p in (tired, full)]
                expected = (nodes / 2) ** 0.5 if crosses and nodes > 2 else 1.0
                assert slopes[0] == pytest.approx(expected * slopes[1]), (kind, nodes)


@pytest.mark.parametrize("kind", sorted(COLLECTIVES))
@pytest.mark.parametrize("action", ["F", "B", "GATHER", "REDUCE", "STEP"])
def test_messages_carry_what_the_collective_moves_however_a_stack_cuts_them(kind, action):
    """Parameters tensor by tensor, gradients in buckets of about a size, activations never."""
    sizes = [3e6, 5e5, 0.0, 40.0, 7e7]
    bucket = 1e6
    for habits, bytes_ in (((), 0.0), (("tensorwise_gather",), bucket), ((), bucket)):
        made = Pricer(cluster(), stack(habits, bucket_bytes=bytes_)).messages(action, kind, sizes)
        assert sum(count * nbytes for count, nbytes in made) == pytest.approx(sum(sizes))
        cuts = action in ("GATHER", "REDUCE", "STEP")
        if habits and cuts and kind == "all_gather":
            assert [nbytes for _, nbytes in made] == sizes
        elif bytes_ and cuts and kind in ("all_reduce", "reduce_scatter"):
            ((count, nbytes),) = made
            assert count > 1
            assert nbytes == pytest.approx(bucket, rel=0.01)
        else:
            assert made == ((1, sum(sizes)),)


def test_the_search_counts_as_many_messages_as_the_program_sends():
    """A tensor bears its share of them."""
    sizes = [3e6, 5e5, 2.5e6, 7e7]
    for habits in ((), ("tensorwise_gather",)):
        pricer = Pricer(cluster(), stack(habits, bucket_bytes=1e6))
        for summed, kind in ((True, "all_reduce"), (False, "all_gather")):
            shares = [nbytes / sum(sizes) for nbytes in sizes]
            borne = sum(
                share * pricer.message_count(summed, nbytes, share)
                for nbytes, share in zip(sizes, shares, strict=True)
            )
            sent = sum(count for count, _ in pricer.messages("STEP", kind, sizes))
            assert borne == pytest.approx(sent)


@pytest.mark.parametrize("family", ["linear", "linear_dx", "linear_dw"])
def test_a_product_narrower_than_its_operands_casts_them_once_each(family):
    """Bytes read and written, beside the product itself, whatever pointwise kernels are like."""
    x, w, y = (Register(n, (4096, 4096), "bf16", "") for n in "xwy")
    narrow = Instr(family, (0, 1), (2,), (("product", "fp8"),))
    work = FAMILIES[family].measure(narrow, [x, w], [y])
    plain = FAMILIES[family].measure(replace(narrow, attrs=()), [x, w], [y])
    elements = 4096 * 4096
    casts = {"linear": 4 + 3, "linear_dx": 4, "linear_dw": 0}[family]
    assert (work.cast_bytes, plain.cast_bytes) == (casts * elements, 0)
    assert replace(work, cast_bytes=0.0) == plain
    processor = Processor(cluster(), stack(pointwise_factor=1.5))
    device = processor.hardware.device
    seconds = [processor.work_seconds(each, "bf16") for each in (work, plain)]
    streamed = casts * elements / (device.memory_bandwidth * device.memory_efficiency)
    assert seconds[0] - seconds[1] == pytest.approx(streamed)
    table = processor.table_seconds([work, plain], ["bf16"] * 2)
    assert table.tolist() == seconds


def test_a_chain_of_update_kernels_slows_updates_and_no_accumulation():
    weights = [Register("w", (1024, 1024), "fp32", "")] * 2
    measure = {name: FAMILIES[name].measure for name in ("accumulate", "square_sum")}
    instrs = {
        "accumulate": (Instr("accumulate", (0, 1), (2,)), weights, weights[:1]),
        "square_sum": (Instr("square_sum", (0, 1), (2,)), weights, [Register("s", (), "fp32", "")]),
    }
    for name, args in instrs.items():
        work = measure[name](*args)
        plain, chain = (
            Processor(cluster(), stack(update_factor=f)).work_seconds(work, "fp32") for f in (1, 3)
        )
        assert (chain > plain) == (name == "square_sum")


def test_what_a_stack_keeps_is_estimated_beside_what_is_counted():
    counted = {"activations": 1000, "logits": 100, "gradients": 10}
    beside = Beside(7, scores=50, gathered=20, unadded=30)
    plain = estimated_lines(counted, beside, stack())
    assert plain["workspace"] == 7
    factors = {"saved_factor": 1.5, "logits_kept": 2.0, "scores_kept": 3.0}
    keeping = stack(("late_accumulation",), **factors, gathered_kept=0.5)
    found = estimated_lines(counted, beside, keeping)
    assert found["workspace"] == 7 + 500 + 200 + 150 + 30 + 10
    assert found["allocator"] > plain["allocator"]
    more = {"activations": 1200, "logits": 0, "gradients": 40}
    found = estimated_lines(counted, replace(beside, held=more), keeping)
    assert found["workspace"] == 7 + 600 + 150 + 30 + 10 + (1240 - 1110)


def test_a_stack_without_the_constants_is_neutral():
    assert {name: STACK.constants[name] for name in NEUTRAL} == dict(NEUTRAL)


def test_intervals_grow_with_what_is_unexplained():
    parts, hardware = {"compute": 1.0, "all_reduce": 0.5}, cluster()
    widths = [half_width(parts, hardware, replace(STACK, unexplained=u)) for u in (1.0, 1.2, 1.5)]
    assert NARROWEST <= widths[0] < widths[1] < widths[2]
    assert half_width({}, hardware, STACK) == NARROWEST


def test_intervals_grow_with_what_is_assumed_of_the_stack():
    """Each constant that changes a step, and is less sure, makes the interval wider."""
    parts, hardware, known = {"compute": 1.0}, cluster(), replace(STACK, unexplained=1.1)

    def width(**spreads: float) -> float:
        evidence = {name: Evidence("fitted", "", 1.0) for name in STACK.constants}
        evidence |= {name: Evidence("assumed", "", spread) for name, spread in spreads.items()}
        constants = {**STACK.constants, "score_traffic": 1.0}
        return half_width(parts, hardware, replace(known, constants=constants, evidence=evidence))

    widths = [width(), width(pointwise_factor=1.8), width(pointwise_factor=1.8, score_traffic=1.5)]
    assert widths[0] < widths[1] < widths[2]
    assert width(crossed_floor_s=3.0) == widths[0]  # this stack has none
