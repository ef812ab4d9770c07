"""Laws: one truth for the search and the simulator; every instruction of a Program has a price."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from autoplan.boxing import route
from autoplan.cost import Pricer
from autoplan.cost.pricer import measure
from autoplan.ir.layout import Axis, B, Layout, Mesh, P, S
from autoplan.ir.program import COLLECTIVES, Program, Segment
from autoplan.lower import lower
from autoplan.lower.builder import Binding, Named, SegmentBuilder
from tests.cost.machines import FAST, SHARED_NIC, STACK, cluster
from tests.plans import TINY_LLAMA, Choices, make_graph, make_plan

HARDWARE = cluster(FAST, SHARED_NIC)
MESH = Mesh((Axis("node", 2, 8), Axis("gpu", 4, 1)))
EXTENT = {"b": 32, "m": 64}
X = Named("x", ("b", "m"), "bf16", "activations")


def transition(source: Layout, target: Layout) -> Segment:
    """A segment that only moves `x`."""
    builder = SegmentBuilder("move", MESH.sizes, EXTENT)
    builder.formal(X, source, Binding("in", "x"))
    builder.bind(builder.value(X, source, target), Binding("out", "y"))
    return builder.build()


TRANSITIONS = [
    ((S("b"), S("b")), (S("m"), S("m"))),
    ((S("b"), P()), (S("b"), B)),
    ((P(), P()), (B, S("m"))),
    ((B, S("m")), (S("b"), B)),
    ((B, B), (S("b"), S("m"))),
]


@pytest.mark.parametrize(("source", "target"), TRANSITIONS)
def test_steps_cost_what_their_instructions_cost(source: Layout, target: Layout) -> None:
    pricer = Pricer(HARDWARE, STACK)
    segment = transition(source, target)
    seconds = pricer.instruction_seconds(segment, MESH, {})
    steps = route(source, target, X.dims, (32, 64), MESH.sizes)
    operands = [segment.registers[instr.ins[0]].nbytes for instr in segment.code]
    terms = [pricer.mesh_terms(step.kind, step.axes, MESH) for step in steps]
    prices = [of.of(nbytes) for of, nbytes in zip(terms, operands, strict=True)]
    assert seconds.tolist() == prices


def test_a_bucket_is_one_message() -> None:
    """Two gathers that share a message pay its latency once."""
    builder = SegmentBuilder("bucket", MESH.sizes, EXTENT)
    tensors = [replace(X, name=name) for name in "xy"]
    split, whole = (B, S("b")), (B, B)
    for tensor in tensors:
        builder.formal(tensor, split, Binding("in", tensor.name))
    for out in builder.bucketed([(tensor, split, whole) for tensor in tensors]):
        builder.bind(out, Binding("out", f"y{out}"))
    segment = builder.build()
    pricer = Pricer(HARDWARE, STACK)
    (seconds,) = pricer.instruction_seconds(segment, MESH, {}).tolist()
    assert seconds == pricer.mesh_terms("all_gather", (1,), MESH).of(2 * 32 * 64 * 2 // 4)
    assert pricer.kinds(segment) == ("all_gather",)


def test_a_slice_is_a_copy_of_the_part() -> None:
    pricer = Pricer(HARDWARE, STACK)
    (seconds,) = pricer.instruction_seconds(transition((B, B), (B, S("m"))), MESH, {}).tolist()
    bandwidth = HARDWARE.device.memory_bandwidth * HARDWARE.device.memory_efficiency
    part = 32 * 64 * 2 / 4
    assert seconds == pytest.approx(HARDWARE.device.launch + 2 * part / bandwidth)


@pytest.fixture(scope="module")
def program() -> Program:
    graph = make_graph()
    choices = Choices(axes=("gathered", "heads"), stages=2, micro_batches=2)
    return lower(graph, make_plan(graph, TINY_LLAMA, choices))


def test_every_instruction_of_a_program_has_a_price_and_a_kind(program: Program) -> None:
    pricer = Pricer(HARDWARE, STACK)
    seen: set[str] = set()
    for stage in program.stages:
        for segment in stage.segments.values():
            seconds = pricer.instruction_seconds(segment, stage.mesh, program.groups)
            kinds = pricer.kinds(segment)
            assert len(seconds) == len(kinds) == len(segment.code)
            assert (seconds > 0.0).all()
            seen.update(kinds)
    assert seen <= COLLECTIVES | {"compute", "optimizer"}
    assert {"compute", "optimizer", "all_gather", "reduce_scatter", "all_reduce"} <= seen


def test_operators_cost_the_same_alone_and_in_a_table(program: Program) -> None:
    pricer = Pricer(HARDWARE, STACK)
    for stage in program.stages:
        for segment in stage.segments.values():
            table = pricer.instruction_seconds(segment, stage.mesh, program.groups).tolist()
            workspace = [0.0]
            for instr, kind, seconds in zip(
                segment.code, pricer.kinds(segment), table, strict=True
            ):
                if kind in COLLECTIVES or instr.op == "slice":
                    continue
                work = measure(instr, segment)
                workspace.append(work.workspace)
                dtype = segment.registers[instr.ins[0]].dtype if instr.ins else ""
                assert pricer.work_seconds(work, dtype) == seconds
            assert pricer.segment_workspace(segment) >= max(workspace)
            assert pricer.segment_workspace(segment) < max(workspace) + 1


def test_only_a_fused_loss_needs_no_wide_copies_of_logits(program: Program) -> None:
    plain = Pricer(HARDWARE, STACK)
    fused = Pricer(HARDWARE, replace(STACK, habits=("fused_loss",)))
    for stage in program.stages:
        for segment in stage.segments.values():
            works = [
                measure(i, segment) for i in segment.code if i.op not in {*COLLECTIVES, "slice"}
            ]
            least = max((w.workspace for w in works if w.kind != "loss"), default=0.0)
            assert fused.segment_workspace(segment) == ceil(least)
            if all(work.kind != "loss" for work in works):
                assert plain.segment_workspace(segment) == ceil(least)


def test_ranks_that_are_cores_do_not_overlap() -> None:
    assert Pricer(HARDWARE, STACK).overlaps
    shared = Pricer(cluster(cores=64, ranks_share_cores=True), STACK)
    assert not shared.overlaps
    assert shared.compute_contention == 1.1
    assert shared.fixed_step == 0.01


def test_transfers_are_affine() -> None:
    pricer = Pricer(HARDWARE, STACK)
    assert pricer.transfer_seconds(1e9, 0, 0) == 0.0
    assert pricer.transfer_seconds(0.0, 0, 8) == pytest.approx(10e-6)
    assert pricer.transfer_seconds(25e9, 0, 8, concurrent=2) == pytest.approx(2 + 10e-6)


def test_transfers_at_once_share_only_the_links_that_they_share() -> None:
    pricer = Pricer(cluster(FAST, SHARED_NIC), STACK)
    across = pricer.exchange_seconds(25e9, range(4, 8), range(12, 16))
    assert across == pricer.transfer_seconds(25e9, 4, 12, concurrent=4)
    mixed = pricer.exchange_seconds(25e9, (6, 7), (7, 8))
    assert mixed == pricer.transfer_seconds(25e9, 7, 8, concurrent=1)
    assert pricer.exchange_seconds(0.0, (0,), (8,)) == 0.0
