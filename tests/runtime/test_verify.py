"""Laws: a right run is verified, a wrong one refused with the place named; pieces assemble to the
whole they were cut from, and replicas must agree in every bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import CheckError, MismatchError
from autoplan.frontends import build_graph, training_step
from autoplan.ir.layout import Axis, B, Mesh, P, S
from autoplan.ir.model import DecoderConfig
from autoplan.ir.program import Register, SlotSpec
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload
from autoplan.runtime.data import Shape, SyntheticBatches
from autoplan.runtime.kernels.place import DTYPES
from autoplan.runtime.random import initial
from autoplan.runtime.reference import reference_step
from autoplan.runtime.reference_optimizer import Values, forms, reference_update
from autoplan.runtime.shards import local_slices
from autoplan.runtime.verify import (
    StepRecord,
    Trial,
    assemble,
    bit_difference,
    compare,
    longest_sum,
    verify,
)

CONFIG = DecoderConfig(
    "llama", "tiny", hidden=8, layers=1, heads=2, kv_heads=1, head_dim=4, ffn=12, vocab=16,
    max_positions=64, initializer_range=0.4,
)  # fmt: skip
ADAMW = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
STEPS = 3


def trial_of(precision="fp64", trainable="full"):
    optimizer = Optimizer("adamw", ADAMW, 1.0)
    workload = Workload("train", 4, 6, PRECISIONS[precision], optimizer, trainable, seed=3)
    graph = training_step(build_graph(CONFIG, 6), trainable)
    return Trial(graph, workload, SyntheticBatches(Shape(4, 6, 16), 3))


def run_of(trial):
    """A run that is right by construction: the reference's own, one sequence at a time."""
    dtype = DTYPES[trial.workload.precision.compute]
    graph, parameters = trial.graph, {}
    for name, (block, local) in graph.parameters.items():
        shape = graph.shape(block, local)
        whole = [slice(0, n) for n in shape]
        parameters[name] = initial(name, graph.init[local], shape, whole, 3, dtype)
    states, records = None, []
    for step in range(STEPS):
        batch = replace(trial, sequences_at_once=1).batch(step)
        loss, gradients = reference_step(graph, parameters, batch)
        if states is None:
            zeros = {n: torch.zeros_like(parameters[n]) for n in gradients}
            states = {n: {"exp_avg": z, "exp_avg_sq": z} for n, z in zeros.items()}
        before = Values(parameters, states)
        after = reference_update(trial.workload.optimizer, forms(graph), before, gradients, step)
        records.append(StepRecord(parameters, states, gradients, after.parameters, float(loss)))
        parameters, states = after.parameters, after.states
    return records


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16_pure"])
def test_a_right_run_is_verified(precision):
    trial = trial_of(precision)
    verdict = verify(trial, run_of(trial))
    verdict.raise_if_failed()
    assert verdict.verified
    assert verdict.replicas_equal
    assert len(verdict.losses) == STEPS
    if precision == "fp64":
        assert verdict.max_gradient_error < 1e-13
        assert verdict.max_parameter_error < 1e-10
    if precision == "bf16_pure":
        assert verdict.max_gradient_error == 0
        assert verdict.max_loss_error > 1e-6


def test_a_partly_frozen_run_is_verified():
    trial = trial_of(trainable="layers")
    verdict = verify(trial, run_of(trial))
    verdict.raise_if_failed()


def nudged(table, name, index, factor):
    table = dict(table)
    table[name] = table[name].clone()
    table[name][index] *= factor
    return table


@pytest.mark.parametrize("field", ["gradients", "parameters_after"])
@pytest.mark.parametrize(("precision", "factor"), [("fp64", 1 + 1e-6), ("fp32", 1.01)])
def test_a_wrong_element_is_named(field, precision, factor):
    trial = trial_of(precision)
    records = run_of(trial)
    name = "layers.0.w_up"
    values = getattr(records[1], field)
    index = divmod(int(values[name].abs().argmax()), 8)
    wrong = nudged(values, name, index, factor)
    records[1] = replace(records[1], **{field: wrong})
    verdict = verify(trial, records)
    assert not verdict.verified
    first = verdict.failures[0]
    assert name in first.what
    assert "step 1" in first.what
    assert first.index == index
    assert first.found == pytest.approx(first.expected * factor, rel=factor / 1e9 + 1e-5)
    with pytest.raises(MismatchError, match=f"{name}.*step 1"):
        verdict.raise_if_failed()


def test_a_wrong_loss_is_refused():
    trial = trial_of()
    records = run_of(trial)
    records[2] = replace(records[2], loss=records[2].loss * (1 + 1e-7))
    verdict = verify(trial, records)
    assert [d.what for d in verdict.failures] == ["loss of step 2"]
    assert verdict.max_loss_error == pytest.approx(1e-7, rel=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["gradients", "loss"])
def test_values_that_are_not_finite_are_refused(field, value):
    trial = trial_of()
    records = run_of(trial)
    wrong = value if field == "loss" else nudged(records[0].gradients, "head", (0, 0), value)
    records[0] = replace(records[0], **{field: wrong})
    verdict = verify(trial, records)
    assert not verdict.verified
    assert verdict.worst is not None
    assert verdict.worst.error == torch.inf


def test_missing_and_surplus_gradients_are_refused():
    trial = trial_of()
    records = run_of(trial)
    short = {n: g for n, g in records[0].gradients.items() if n != "head"}
    missing = verify(trial, [replace(records[0], gradients=short)])
    assert any("head" in d.what and "missing in the run" in d.what for d in missing.failures)
    long = {**records[0].gradients, "other": torch.zeros(2)}
    surplus = verify(trial, [replace(records[0], gradients=long)])
    assert any("other" in d.what and "missing in the ref" in d.what for d in surplus.failures)


def test_state_lost_between_steps_is_found_by_the_free_run_alone():
    trial = trial_of()
    records = run_of(trial)
    zeros = {
        n: {s: torch.zeros_like(t) for s, t in v.items()} for n, v in records[1].states.items()
    }
    for k in (1, 2):
        before = records[k].parameters if k == 1 else records[1].parameters_after
        loss, gradients = reference_step(trial.graph, before, trial.batch(k))
        values = Values(before, zeros)
        after = reference_update(
            trial.workload.optimizer, forms(trial.graph), values, gradients, k
        ).parameters
        records[k] = StepRecord(before, zeros, gradients, after, float(loss))
    verdict = verify(trial, records)
    assert not verdict.verified
    assert all("free steps" in d.what for d in verdict.failures)


def test_a_wrong_loss_in_sixteen_bits_is_refused():
    trial = trial_of("bf16_pure")
    records = run_of(trial)
    records[0] = replace(records[0], loss=records[0].loss * 1.05)
    assert not verify(trial, records).verified


def test_unequal_replicas_are_refused():
    trial = trial_of()
    records = run_of(trial)
    difference = bit_difference("w", torch.ones(2), torch.tensor([1.0, 2.0]))
    verdict = verify(trial, records, [difference])
    assert not verdict.verified
    assert not verdict.replicas_equal


def test_error_is_relative_to_the_tensor_but_not_below_a_share_of_the_largest():
    big, small = torch.tensor([10.0, 1.0]).double(), torch.tensor([1e-9, 0.0]).double()
    assert compare("x", big * 1.1, big, 10.0, 0.01).error == pytest.approx(0.1)
    assert compare("x", small * 2, small, 10.0, 0.01).error == pytest.approx(1e-9 / 0.01)
    assert compare("x", small, torch.zeros(3).double(), 10.0, 0.01).error == torch.inf


def test_longest_sum():
    assert longest_sum(trial_of().graph, 4) == 24
    assert longest_sum(trial_of().graph, 1) == 16


DIMS = {"a": 8, "b": 16, "c": 3}
PLACEMENTS = st.sampled_from([B, S("a"), S("b")])


@settings(max_examples=40, deadline=None)
@given(st.lists(PLACEMENTS, min_size=0, max_size=3), st.data())
def test_pieces_assemble_to_their_whole(layout, data):
    axes = tuple(Axis(f"x{i}", 2, 2**i) for i in range(len(layout)))
    mesh = Mesh(axes, offset=5)
    whole = torch.randn(8, 16, 3)
    spec = SlotSpec(
        ("w", -1, -1), Register("w", (), "fp32", ""), tuple(layout), ("a", "b", "c"),
        ("parameter", "w"),
    )  # fmt: skip
    pieces = {}
    for coordinate in mesh.coordinates():
        part = local_slices(spec.dims, spec.layout, mesh.sizes, coordinate, DIMS)
        pieces[mesh.device(coordinate)] = whole[part].clone()
    assert torch.equal(assemble(spec, mesh, pieces, DIMS), whole)
    if B in layout:
        rank = data.draw(st.sampled_from(sorted(pieces)))
        pieces[rank].view(-1)[1] += 1
        with pytest.raises(MismatchError, match="parameter/w: replica of rank"):
            assemble(spec, mesh, pieces, DIMS)
        found = []
        assemble(spec, mesh, pieces, DIMS, found)
        assert found[0].index == (0, 0, 1)


def test_partial_pieces_have_no_whole():
    mesh = Mesh((Axis("x", 2, 1),))
    spec = SlotSpec(
        ("g", 0, -1), Register("g", (2,), "fp32", ""), (P(),), ("a",), ("parameter", "w")
    )
    with pytest.raises(CheckError, match="partial"):
        assemble(spec, mesh, {0: torch.ones(2), 1: torch.ones(2)}, {"a": 2})


def test_bits_differ_where_values_do_not():
    zero, minus = torch.zeros(2), torch.tensor([0.0, -0.0])
    assert bit_difference("x", zero, zero.clone()) is None
    difference = bit_difference("x", minus, zero)
    assert difference is not None
    assert difference.index == (1,)
    nan = torch.tensor(float("nan"))
    assert bit_difference("x", nan, nan.clone()) is None
