"""Laws: the norm counts each element once; updates equal their formulas, in place."""

from __future__ import annotations

import pytest
import torch

from autoplan.runtime.kernels import Place, StepContext
from tests.runtime.kernels.calls import close, like, rand, run


def test_norm_counts_each_element_once():
    """Operand 0 is split over axis 0, replicated over 1; 1 is whole; 2 is counted elsewhere."""
    split, full, foreign = rand(4, 3), rand(5), rand(7)
    total = 0.0
    for c in ((0, 0), (0, 1), (1, 0), (1, 1)):
        operands = (split[2 * c[0] : 2 * c[0] + 2].clone(), full, foreign)
        attrs = {"owner": ((1,), (0, 1), None), "accumulates": False}
        (part,) = run("square_sum", operands, [((), torch.float64)], attrs, place=Place((2, 2), c))
        acc = torch.tensor(2.0, dtype=torch.float64)
        (again,) = run(
            "square_sum", (*operands, acc), [((), torch.float64)], attrs | {"accumulates": True},
            alias=(3,), place=Place((2, 2), c),
        )  # fmt: skip
        close([again], [part + 2])
        total += float(part)
    assert total == pytest.approx(float(split.square().sum() + full.square().sum()), rel=1e-14)


@pytest.mark.parametrize(
    ("clip", "squares", "expected"), [(1.0, 16.0, 0.25), (5.0, 16.0, 1), (0.0, 16.0, 1)]
)
def test_clip_factor(clip, squares, expected):
    (factor,) = run("clip_factor", (torch.tensor(squares),), [((), torch.float32)], {"clip": clip})
    assert float(factor) == pytest.approx(expected, rel=1e-6)


def adamw(p, g, m, v, step, h):
    m = h["beta1"] * m + (1 - h["beta1"]) * g
    v = h["beta2"] * v + (1 - h["beta2"]) * g * g
    root = (v / (1 - h["beta2"] ** step)).sqrt() + h["eps"]
    p = p * (1 - h["lr"] * h["weight_decay"])
    return p - h["lr"] * m / (1 - h["beta1"] ** step) / root, m, v


ADAMW = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


def test_adamw_in_place_over_several_blocks(monkeypatch):
    monkeypatch.setattr("autoplan.runtime.kernels.optimizer.BLOCK", 7)
    p, g, m, v = rand(5, 6), rand(5, 6, seed=1), rand(5, 6, seed=2), rand(5, 6, seed=3).square()
    factor = torch.tensor(0.5, dtype=torch.float64)
    expected = adamw(p, g * 0.5, m, v, 3, ADAMW)
    context = StepContext(step=2)
    got = run("adamw", (p, g, factor, m, v), like(p, m, v), ADAMW, alias=(0, 3, 4), context=context)
    close(got, expected)


def test_adamw_keeps_a_master_copy():
    master, g = rand(6, dtype=torch.float32), rand(6, seed=1, dtype=torch.float32)
    p = master.to(torch.bfloat16)
    m, v, factor = torch.zeros(6), torch.zeros(6), torch.tensor(1.0)
    expected = adamw(master.clone(), g, m.clone(), v.clone(), 1, ADAMW)
    got = run(
        "adamw", (p, g, factor, m, v, master), like(p, m, v, master), ADAMW, alias=(0, 3, 4, 5)
    )
    close([got[3]], [expected[0]], 1e-6)
    assert torch.equal(got[0], got[3].to(torch.bfloat16))


def test_bf16_states_are_updated_in_fp32():
    p, g = rand(6, dtype=torch.bfloat16), rand(6, seed=1, dtype=torch.bfloat16)
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    zeros = torch.zeros(6)
    expected = adamw(p.float(), g.float(), zeros, zeros, 1, ADAMW)
    operands = (p, g, torch.tensor(1.0), m, v)
    got = run("adamw", operands, like(p, m, v), ADAMW, alias=(0, 3, 4))
    for found, wanted in zip(got, expected, strict=True):
        assert torch.equal(found, wanted.to(torch.bfloat16))


def test_sgd():
    p, g, buffer = rand(5), rand(5, seed=1), rand(5, seed=2)
    attrs = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    wanted = 0.9 * buffer + 0.5 * g + 0.01 * p
    expected = (p - 0.1 * wanted, wanted)
    operands = (p, g, torch.tensor(0.5, dtype=torch.float64), buffer)
    close(run("sgd", operands, like(p, buffer), attrs, alias=(0, 3)), expected)
