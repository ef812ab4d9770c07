"""Laws: every kernel equals autograd in fp64; a sharded one gives the shard of the whole."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from autoplan.errors import CheckError
from autoplan.ir.program import Instr, Register
from autoplan.runtime.kernels import KERNELS, Place, StepContext, link
from autoplan.runtime.kernels.collective import local_result
from tests.runtime.kernels.calls import ALONE, close, gradients, like, rand, run, with_accumulator


@pytest.mark.parametrize(
    ("batch", "out", "inner"),
    [((2, 3), (5,), (4,)), ((2, 3), (2, 3, 4), (6,)), ((4,), (6,), (2, 3))],
)
def test_linear_family(batch, out, inner):
    x, w, dy = rand(*batch, *inner), rand(*out, *inner), rand(*batch, *out)
    attrs = {"contract": len(inner)}

    def forward(x, w):
        return (x.flatten(-len(inner)) @ w.flatten(-len(inner)).flatten(0, -2).T).view(dy.shape)

    dx, dw = gradients(forward, (x, w), dy)
    close(run("linear", (x, w), like(dy), attrs), [forward(x, w)])
    close(run("linear_dx", (dy, w), like(x), attrs), [dx])
    with_accumulator("linear_dw", (x, dy), dw, attrs)


def test_linear_dw_adds_bf16_products_to_an_fp32_accumulator():
    x, dy = rand(4, 3, dtype=torch.bfloat16), rand(4, 5, dtype=torch.bfloat16)
    total = torch.ones(5, 3)
    (got,) = run("linear_dw", (x, dy, total), like(total), {"contract": 1}, alias=(2,))
    close([got], [1 + dy.float().T @ x.float()], 0.02)


def test_bias_family():
    x, b, dy = rand(2, 3, 4, 5), rand(4, 5), rand(2, 3, 4, 5)
    _, db = gradients(lambda x, b: x + b, (x, b), dy)
    close(run("bias_add", (x, b), like(x)), [x + b])
    with_accumulator("bias_grad", (dy,), db, {"keep": 2})


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("rows", [(2, 3), (2, 3, 2, 5)], ids=["positions", "heads"])
def test_rms_norm_family(offset, rows):
    x, w, dy = rand(*rows, 8), rand(8), rand(*rows, 8, seed=1)
    attrs = {"eps": 1e-5, "offset": offset}

    def forward(x, w):
        return F.rms_norm(x, (8,), eps=1e-5) * (offset + w)

    dx, dw = gradients(forward, (x, w), dy)
    y, rstd = run("rms_norm", (x, w), [*like(x), (rows, x.dtype)], attrs)
    close([y], [forward(x, w)])
    close(run("rms_norm_dx", (dy, x, w, rstd), like(x), attrs), [dx])
    with_accumulator("rms_norm_dw", (dy, x, rstd), dw)


@pytest.mark.parametrize("rows", [(2, 3), (2, 3, 2, 5)], ids=["positions", "heads"])
def test_layer_norm_family(rows):
    x, w, bias, dy = rand(*rows, 8), rand(8), rand(8, seed=2), rand(*rows, 8, seed=1)

    def forward(x, w, bias):
        return F.layer_norm(x, (8,), w, bias, 1e-5)

    dx, dw, _ = gradients(forward, (x, w, bias), dy)
    row = (rows, x.dtype)
    y, mean, rstd = run("layer_norm", (x, w, bias), [*like(x), row, row], {"eps": 1e-5})
    close([y], [forward(x, w, bias)])
    close(run("layer_norm_dx", (dy, x, w, mean, rstd), like(x)), [dx])
    with_accumulator("layer_norm_dw", (dy, x, mean, rstd), dw)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_statistics_of_bf16_norms_are_fp32(op):
    x, w = rand(2, 3, 64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.bfloat16)
    operands = (x, w) if op == "rms_norm" else (x, w, torch.zeros_like(w))
    rows = [((2, 3), torch.float32)] * (len(operands) - 1)
    y, *_, rstd = run(op, operands, [*like(x), *rows], {"eps": 1e-5, "offset": 0.0})
    exact = x.double() - (x.double().mean(-1, keepdim=True) if op == "layer_norm" else 0)
    expected = (exact.square().mean(-1) + 1e-5).rsqrt()
    close([rstd.double()], [expected], 1e-6)
    close([y.double()], [exact * expected.unsqueeze(-1)], 8e-3)


def test_pointwise():
    a, b = rand(2, 3, 4), rand(2, 3, 4, seed=1)
    close(run("add", (a, b), like(a)), [a + b])
    close(run("scale", (a,), like(a), {"factor": 3.5}), [a * 3.5])
    wanted = a + b
    close(run("accumulate", (a, b), like(a), alias=(0,)), [wanted])


ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": lambda x: x.clamp(min=0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    fn, attrs = ACTIVATIONS[name], {"activation": name}
    x, up, dy = rand(2, 3, 4), rand(2, 3, 4, seed=1), rand(2, 3, 4, seed=2)
    close(run("activation", (x,), like(x), attrs), [fn(x)])
    close(run("activation_grad", (dy, x), like(x), attrs), gradients(fn, (x,), dy))
    close(run("gated", (x, up), like(x), attrs), [fn(x) * up])
    wanted = gradients(lambda gate, up: fn(gate) * up, (x, up), dy)
    close(run("gated_grad", (dy, x, up), like(x, up), attrs), wanted)


@pytest.mark.parametrize("scaling", [None, (8.0, 1.0, 4.0, 32)])
@pytest.mark.parametrize("middle", [(2,), (2, 3)])
def test_rotary_is_a_rotation_by_position(scaling, middle):
    x = rand(2, 5, *middle, 8)
    positions = torch.arange(5).expand(2, 5) + torch.tensor([[0], [7]])
    attrs = {"theta": 100.0, "sign": 1, "scaling": scaling}
    (y,) = run("rotary", (x, positions), like(x), attrs)
    close([y.norm(dim=-1)], [x.norm(dim=-1)])
    close(run("rotary", (y, positions), like(x), {**attrs, "sign": -1}), [x])
    close([y[0, 0]], [x[0, 0]])
    if scaling is None:
        angle = 9 * 100.0 ** (-2 / 8)  # sequence 1, position 2, pair 1
        first, second = x[1, 2, ..., 1], x[1, 2, ..., 5]
        expected = first * math.cos(angle) - second * math.sin(angle)
        close([y[1, 2, ..., 1]], [expected])


def test_rotary_of_a_part_leaves_the_rest():
    """The part is rotated as a head of its width is; what lies beyond passes, both ways."""
    x, positions = rand(2, 5, 3, 8), torch.arange(5).expand(2, 5)
    for sign in (1, -1):
        attrs = {"theta": 100.0, "sign": sign, "scaling": None}
        (y,) = run("rotary", (x, positions), like(x), {**attrs, "width": 4})
        part = x[..., :4].contiguous()
        close([y[..., :4]], run("rotary", (part, positions), like(part), attrs))
        assert torch.equal(y[..., 4:], x[..., 4:])


def test_dropout_of_shards_is_the_shard_of_dropout():
    x = rand(4, 6, 8)
    attrs = {"p": 0.3, "key": "mlp.dropped"}
    context = StepContext(step=3, seed=1, micro_batch=1, instance=2, batch=4)
    (whole,) = run("dropout", (x,), like(x), attrs, context=context)
    kept = whole != 0
    assert 0.5 < kept.double().mean() < 0.9
    close([whole[kept]], [x[kept] / 0.7])
    shard = {"shard": ((0, (0,)), (2, (1,)))}
    for c in ((0, 0), (0, 1), (1, 0), (1, 1)):
        part = x[2 * c[0] : 2 * c[0] + 2, :, 4 * c[1] : 4 * c[1] + 4].contiguous()
        place = Place((2, 2), c)
        (got,) = run("dropout", (part,), like(part), attrs | shard, place=place, context=context)
        assert torch.equal(got, whole[2 * c[0] : 2 * c[0] + 2, :, 4 * c[1] : 4 * c[1] + 4])
    halves = []
    for micro_batch in (2, 3):  # the same sequences 4..7 as two micro-batches of two
        half = x[2 * micro_batch - 4 : 2 * micro_batch - 2].contiguous()
        other = StepContext(step=3, seed=1, micro_batch=micro_batch, instance=2, batch=2)
        halves += run("dropout", (half,), like(half), attrs, context=other)
    assert torch.equal(torch.cat(halves), whole)
    for changed in ("step", "seed", "micro_batch", "instance"):
        other = StepContext(step=3, seed=1, micro_batch=1, instance=2, batch=4)
        setattr(other, changed, 7)
        assert not torch.equal(run("dropout", (x,), like(x), attrs, context=other)[0], whole)


def test_embedding_family_with_a_split_vocabulary():
    ids = torch.tensor([[0, 5, 3], [7, 7, 1]])
    table, dy = rand(8, 4), rand(2, 3, 4)
    (dtable,) = gradients(lambda t: F.embedding(ids, t), (table,), dy)
    close(run("embedding", (ids, table), like(dy)), [F.embedding(ids, table)])
    with_accumulator("embedding_grad", (ids, dy), dtable)
    shard = {"shard": ((0, (0,)),)}
    total = torch.zeros(2, 3, 4, dtype=torch.float64)
    for c in range(2):
        place, rows = Place((2,), (c,)), slice(4 * c, 4 * c + 4)
        part = table[rows].clone()
        total += run("embedding", (ids, part), like(dy), shard, place=place)[0]
        with_accumulator("embedding_grad", (ids, dy), dtable[rows], shard, place=place)
    close([total], [F.embedding(ids, table)])


def test_embedding_with_an_offset_reads_later_rows():
    ids = torch.tensor([[0, 5, 3], [1, 4, 1]])
    table, dy = rand(8, 4), rand(2, 3, 4)
    close(run("embedding", (ids, table), like(dy), {"offset": 2}), [table[ids + 2]])
    (expected,) = gradients(lambda t: F.embedding(ids + 2, t), (table,), dy)
    with_accumulator("embedding_grad", (ids, dy), expected, {"offset": 2})
    for c in range(2):
        attrs = {"offset": 2, "shard": ((0, (0,)),)}
        rows = slice(4 * c, 4 * c + 4)
        part = expected[rows]
        with_accumulator("embedding_grad", (ids, dy), part, attrs, place=Place((2,), (c,)))


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_cross_entropy_family_with_a_split_vocabulary(parts):
    logits, targets = 3 * rand(2, 5, 8), torch.tensor([[0, 7, -100, 3, 4], [-100, 1, 1, 2, -100]])
    count = torch.tensor(11.0, dtype=torch.float64)  # of the whole batch, more than here

    def forward(x):
        flat = x.view(-1, 8), targets.view(-1)
        return F.cross_entropy(*flat, reduction="sum", ignore_index=-100) / 11

    (expected,) = gradients(forward, (logits,), torch.ones((), dtype=torch.float64))
    shard = {"shard": ((2, (0,)),)}
    width, stats = 8 // parts, []
    kind = [((2, 5, 2), logits.dtype)]
    cuts = [logits[..., i * width : (i + 1) * width].contiguous() for i in range(parts)]
    places = [Place((parts,), (i,)) for i in range(parts)]
    for cut, place in zip(cuts, places, strict=True):
        stats.append(run("xent_stats", (cut, targets), kind, shard, place=place))
    merge = Instr("all_reduce", (), (), (("axes", (0,)), ("reduction", "softmax")))
    (merged,) = local_result(merge, 0, stats)
    with_accumulator("xent_loss", (merged, targets, count), forward(logits))
    for i, (cut, place) in enumerate(zip(cuts, places, strict=True)):
        got = run("xent_grad", (cut, merged, targets, count), like(cut), shard, place=place)
        close(got, [expected[..., i * width : (i + 1) * width]])


def test_slice_takes_the_part_of_the_coordinate_over_its_axes():
    x = rand(2, 12)
    for c in ((0, 0, 0), (1, 0, 2), (1, 1, 1)):
        index = c[0] * 3 + c[2]
        kind = [((2, 2), x.dtype)]
        place = Place((2, 2, 3), c)
        (got,) = run("slice", (x,), kind, {"axes": (0, 2), "dim": 1}, place=place)
        assert torch.equal(got, x[:, 2 * index : 2 * index + 2])


def test_unknown_operators_and_missing_attributes_are_named():
    register = Register("x", (2,), "fp64", "")
    with pytest.raises(CheckError, match=r"no kernel for operator `linaer`; did you mean `linear`"):
        link(Instr("linaer", (0,), (0,)), [register], ALONE)
    with pytest.raises(CheckError, match="`scale` lacks the attribute `factor`"):
        link(Instr("scale", (0,), (0,)), [register], ALONE)
    assert not {"all_reduce", "all_gather"} & set(KERNELS)
