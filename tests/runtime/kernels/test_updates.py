"""Laws: kernels of an update follow their formulas, change what they say, and skip when told."""

from __future__ import annotations

import pytest
import torch

from autoplan.ir.optimizer import OPTIMIZERS
from autoplan.runtime.kernels import StepContext
from tests.runtime.kernels.calls import close, like, rand, run

ONE = torch.tensor(1.0, dtype=torch.float64)
SKIP = torch.tensor([0.0, 3.0], dtype=torch.float64)
"""A factor of 0 beside the number of steps taken."""


def test_lion_is_a_sign():
    p, g, mean = rand(5), rand(5, seed=1), rand(5, seed=2)
    h = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01}
    expected = p - 0.1 * ((0.9 * mean + 0.1 * g).sign() + 0.01 * p), 0.99 * mean + 0.01 * g
    close(run("lion", (p, g, ONE, mean), like(p, mean), h, alias=(0, 3)), expected)


def test_momentum_looks_ahead():
    g, mean = rand(4, 3), rand(4, 3, seed=1)
    after = 0.9 * mean + 0.1 * g
    found = run("muon_momentum", (g, ONE, mean), like(mean, g), {"momentum": 0.9}, alias=(2, -1))
    close(found, (after, 0.1 * g + 0.9 * after))


@pytest.mark.parametrize(("shape", "outer"), [((6, 4), 1), ((3, 2, 8), 2), ((3, 8, 2), 1)])
def test_an_orthogonal_matrix_has_singular_values_near_one(shape, outer):
    x = rand(*shape)
    (found,) = run("orthogonalise", (x,), like(x), {"outer": outer})
    rows = int(torch.tensor(shape[:outer]).prod())
    u, s, vh = torch.linalg.svd(found.view(rows, -1), full_matrices=False)
    assert float(s.min()) > 0.5
    assert float(s.max()) < 1.3
    a, _, b = torch.linalg.svd(x.view(rows, -1), full_matrices=False)
    assert float((u @ vh - a @ b).abs().max()) < 1e-6


def test_muon_scales_and_decays():
    p, step = rand(4, 3), rand(4, 3, seed=1)
    attrs = {"lr": 0.1, "weight_decay": 0.5, "scale": 2.0}
    expected = p * 0.95 - 0.2 * step
    (found,) = run("muon", (p, step, ONE), like(p), attrs, alias=(0,))
    close([found], [expected])


@pytest.mark.parametrize("block", [1 << 18, 8, 2])
def test_adafactor_of_parts_is_that_of_the_whole(monkeypatch, block):
    """Two halves of the columns, whose sums are added between the operators."""
    monkeypatch.setattr("autoplan.runtime.kernels.adafactor.BLOCK", block)
    h = {**OPTIMIZERS["adafactor"].hyper, "lr": 0.1, "counts": (4, 6), "outer": 1}
    p, g, rows, columns = rand(4, 6), rand(4, 6, seed=1), rand(4).square(), rand(6).square()

    def step(halves):
        parts = [(p[:, k].clone(), g[:, k].clone(), columns[k].clone()) for k in halves]
        means = [run("adafactor_means", (own, ONE), like(rows, c), h) for _, own, c in parts]
        row_means = sum(m[0] for m in means)
        sums, states = [], []
        for (value, own, c), (_, column_means) in zip(parts, means, strict=True):
            operands = (own, ONE, value, rows.clone(), c, row_means, column_means)
            left = run("adafactor_sums", operands, like(rows, c, ONE, ONE, ONE), h,
                       alias=(3, 4, -1, -1, -1), context=StepContext(step=1))  # fmt: skip
            states.append(left[:2])
            sums.append(left[2:])
        whole = [sum(values) for values in zip(*sums, strict=True)]
        found = [
            run("adafactor", (value, own, ONE, *state, *whole), like(value), h, alias=(0,),
                context=StepContext(step=1))[0]
            for (value, own, _), state in zip(parts, states, strict=True)
        ]  # fmt: skip
        return torch.cat(found, 1)

    close([step([slice(0, 3), slice(3, 6)])], [step([slice(0, 6)])])


SKIPPED = {
    "adamw": (("p", "g", "f", "s", "s"), (0, 3, 4), OPTIMIZERS["adamw"].hyper),
    "lion": (("p", "g", "f", "s"), (0, 3), OPTIMIZERS["lion"].hyper),
    "sgd": (("p", "g", "f", "s"), (0, 3), OPTIMIZERS["sgd"].hyper),
    "muon_momentum": (("g", "f", "s"), (2, -1), {"momentum": 0.9}),
    "muon": (("p", "s", "f"), (0,), {"lr": 0.1, "weight_decay": 0.5, "scale": 2.0}),
}


@pytest.mark.parametrize("op", SKIPPED)
def test_a_skipped_step_changes_nothing(op):
    names, alias, attrs = SKIPPED[op]
    made = {"p": rand(4, 3), "g": torch.full((4, 3), torch.inf, dtype=torch.float64), "f": SKIP}
    operands = [rand(4, 3, seed=i) if n == "s" else made[n].clone() for i, n in enumerate(names)]
    before = [operand.clone() for operand in operands]
    results = [operands[k] if k >= 0 else operands[0] for k in alias]
    run(op, operands, like(*results), attrs, alias=alias)
    for one, other in zip(before, operands, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("squares", "counts", "expected"),
    [
        (16.0 * 8**2, (1.0, 5.0), ((0.25 / 8, 5.0), 8.0, (2.0, 6.0))),
        (16.0 * 8**2, (2.0, 5.0), ((0.25 / 8, 5.0), 16.0, (0.0, 6.0))),
        (float("inf"), (2.0, 5.0), ((0.0, 5.0), 4.0, (0.0, 5.0))),
    ],
)
def test_the_scale_grows_and_falls(squares, counts, expected):
    """The norm 4 of unscaled gradients is clipped to 1; the third good step in a row doubles."""
    operands = [torch.tensor(value) for value in (squares, 8.0, counts)]
    results = [((2,), torch.float32), ((), torch.float32), ((2,), torch.float32)]
    attrs = {"clip": 1.0, "growth_interval": 3}
    found = run("clip_factor", operands, results, attrs, alias=(-1, 1, 2))
    close(found, [torch.tensor(value) for value in expected], 1e-6)
