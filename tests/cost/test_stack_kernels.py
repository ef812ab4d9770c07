"""What a stack's kernels and habits cost: each constant slows what it is about, nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.cost import Beside, Pricer, estimated_lines
from autoplan.cost.compute import Processor
from autoplan.cost.uncertainty import NARROWEST, half_width
from autoplan.ir.machine import NEUTRAL
from autoplan.ir.program import Instr, Register
from autoplan.ops import FAMILIES
from autoplan.ops.attention import BACKWARD_PASSES, FORWARD_PASSES
from tests.cost.machines import STACK, cluster


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
    for work, name in ((loss, "loss_factor"), (add, "pointwise_factor")):
        for constant in ("loss_factor", "pointwise_factor"):
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
    assert Pricer(cluster(), stack()).beside == {"GATHER", "REDUCE"}
    assert Pricer(cluster(), stack(("late_exchange",))).beside == {"GATHER"}


def test_what_a_stack_keeps_is_estimated_beside_what_is_counted():
    counted = {"activations": 1000, "logits": 100, "gradients": 10}
    plain = estimated_lines(counted, Beside(7, scores=50, gradients=40), stack())
    assert plain["workspace"] == 7
    keeping = stack(("gradient_buffers",), saved_factor=1.5, logits_kept=2.0, scores_kept=3.0)
    found = estimated_lines(counted, Beside(7, scores=50, gradients=40), keeping)
    assert found["workspace"] == 7 + 500 + 200 + 150 + 30
    assert found["allocator"] > plain["allocator"]


def test_a_stack_without_the_constants_is_neutral():
    assert {name: STACK.constants[name] for name in NEUTRAL} == dict(NEUTRAL)


def test_intervals_grow_with_what_is_unexplained():
    parts, hardware = {"compute": 1.0, "all_reduce": 0.5}, cluster()
    widths = [half_width(parts, hardware, replace(STACK, unexplained=u)) for u in (1.0, 1.2, 1.5)]
    assert NARROWEST <= widths[0] < widths[1] < widths[2]
    assert half_width({}, hardware, STACK) == NARROWEST
