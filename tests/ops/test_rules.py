"""Law 1: the signatures derived from an operator's dims are those that are true, tried one by one.

Every placement of every operand along one axis is executed with the kernels on shards; whatever
placement of the results puts the whole results together again is true. Derived and true sets are
equal, but for what `PARTIAL` and `NORM_WEIGHT` name.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch

from autoplan.ir.layout import B, P, Placement, S
from autoplan.lower.segments import SHARDED_OPERAND, SHARDED_RESULT
from autoplan.ops import FAMILIES, update
from autoplan.runtime.kernels import Place
from autoplan.runtime.kernels.collective import _softmax_merge
from tests.ops.cases import SIZES, Case, cases
from tests.runtime.kernels.calls import run

Signature = tuple[tuple[Placement, ...], tuple[Placement, ...]]

PARTIAL = frozenset(
    [
        "linear",
        "linear_dx",
        "linear_dw",
        "bias_add",
        "bias_grad",
        "rms_norm_dx",
        "rms_norm_dw",
        "layer_norm",
        "layer_norm_dx",
        "layer_norm_dw",
        "gated",
        "gated_grad",
        "activation_grad",
        "attention",
        "attention_grad",
        "packed_attention",
        "packed_attention_grad",
        "embedding",
        "embedding_grad",
        "xent_loss",
    ]
)
"""Families that are linear in an operand whose partial sums could pass, which no signature uses:
the sum is taken before them, where the tensor is no larger, or they leave partial sums anyway."""
NORM_WEIGHT = frozenset({"rms_norm_dw", "layer_norm_dw"})
"""Could split the normalised dim, which the forward of the same layer operator needs whole."""


def derived(case: Case) -> set[Signature]:
    op, tensors = case.op()
    family = FAMILIES[case.family]
    return {family.signature(op, tensors, choice) for choice in family.choices(op, tensors)}


def pieces(value: torch.Tensor, dims: tuple[str, ...], placement: Placement, ranks: int):
    if placement.kind == "S":
        return [p.contiguous() for p in value.chunk(ranks, dims.index(placement.name))]
    if placement.kind == "B":
        return [value] * ranks
    generator = torch.Generator().manual_seed(3)
    terms = [torch.randn(value.shape, generator=generator, dtype=value.dtype) for _ in range(ranks)]
    terms[-1] = value - sum(terms[:-1])
    return terms


def consistent(
    dims: list[tuple[str, ...]], options: list[list[Placement]], sizes: dict[str, bool]
) -> Iterator[tuple[Placement, ...]]:
    """A kernel can be called only where operands agree on the local size of every dim."""
    if not options:
        yield ()
        return
    for placement in options[0]:
        own = {name: placement == S(name) for name in dims[0]}
        if all(sizes.get(name, split) == split for name, split in own.items()):
            for rest in consistent(dims[1:], options[1:], {**sizes, **own}):
                yield (placement, *rest)


def true_placements(parts: list[torch.Tensor], whole: torch.Tensor, dims) -> Iterator[Placement]:
    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        return a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-11)

    if all(same(part, whole) for part in parts):
        yield B
    if same(sum(parts), whole):
        yield P()
    if dims[-1:] == ("c",) and same(_softmax_merge(parts), whole):
        yield P("softmax")
    for index, dim in enumerate(dims):
        if whole.shape[index] > parts[0].shape[index] and same(torch.cat(parts, index), whole):
            yield S(dim)


def execute(case: Case, operands, placements, local, ranks: int) -> list[list[torch.Tensor]] | None:
    """Results of every rank; None where the kernel refuses the shapes."""
    ins, outs = case.dims()
    index = SHARDED_OPERAND.get(case.family, -1)
    of = ins[index] if index >= 0 else outs[SHARDED_RESULT.get(case.family, 0)]
    shard = tuple((i, (0,)) for i, dim in enumerate(of) if dim in local)
    if index >= 0 and placements[index].kind != "S":
        shard = ()
    extent = {
        dim: SIZES.get(dim, case.size) // (ranks if dim in local else 1)
        for dims in (*ins, *outs)
        for dim in dims
    }
    attrs = {**case.attrs, "shard": shard}
    if case.family == "embedding_grad":
        attrs["rows"] = extent["v"]
    types = [(tuple(extent[dim] for dim in dims), torch.float64) for dims in outs]
    cut = [pieces(v, d, p, ranks) for v, d, p in zip(operands, ins, placements, strict=True)]
    results = []
    for rank in range(ranks):
        own = [part[rank] for part in cut]
        results.append(list(run(case.family, own, types, attrs, place=Place((ranks,), (rank,)))))
    return results


def whole_in(case: Case) -> str:
    """Dims that are not tried: of two statistics, and of documents, which are found by number."""
    return "ct" if case.family.startswith("packed") else "c"


def true_signatures(case: Case, ranks: int) -> set[Signature]:
    """All that hold; the two statistics of the loss (dim c) are one value that nothing splits."""
    ins, outs = case.dims()
    operands = case.operands()
    whole = execute(case, operands, (B,) * len(ins), frozenset(), 1)[0]
    found: set[Signature] = set()
    options = [
        [
            B,
            *(S(dim) for dim in dims if dim not in whole_in(case)),
            *([P()] if value.is_floating_point() else []),
        ]
        for dims, value in zip(ins, operands, strict=True)
    ]
    given = {dim for dims in ins for dim in dims}
    free = sorted({dim for dims in outs for dim in dims} - given - {"c"})
    for placements in consistent(ins, options, {}):
        split = frozenset(p.name for p in placements if p.kind == "S")
        if any(SIZES.get(dim, case.size) % ranks for dim in split):
            continue
        for extra in (frozenset(), *({dim} for dim in free)):
            results = execute(case, operands, placements, split | extra, ranks)
            places = [
                list(true_placements([own[i] for own in results], whole[i], dims))
                for i, dims in enumerate(outs)
            ]
            found |= {(placements, result) for result in product(*places)}
    return found


@pytest.mark.parametrize("name", cases())
def test_derived_signatures_are_the_true_ones(name):
    case = cases()[name]
    rules, truth = derived(case), true_signatures(case, 2)
    assert not rules - truth, "unsound"
    missing = {s for s in truth - rules if P() not in s[0]}
    if case.family in NORM_WEIGHT:
        width = case.dims()[1][0][0]
        missing = {s for s in missing if S(width) not in s[0]}
    assert not missing
    omitted = {s for s in truth - rules if P() in s[0]}
    assert bool(omitted) == (case.family in PARTIAL)


@pytest.mark.parametrize("name", ["linear", "add", "embedding", "xent_stats", "rms_norm"])
def test_derived_signatures_are_true_on_four_ranks(name):
    case = cases()[name]
    truth = true_signatures(case, 4)
    for operands, results in derived(case):
        if all(SIZES.get(p.name, 4) % 4 == 0 for p in operands if p.kind == "S"):
            assert (operands, results) in truth


def test_number_of_signatures_of_a_matrix_product():
    """b, s, m, f split or all ranks alike; P through an operand is left out."""
    assert len(derived(cases()["linear"])) == 5


def test_every_family_with_signatures_has_a_case():
    updates = {family.name for family in update.FAMILIES}
    assert {case.family for case in cases().values()} == set(FAMILIES) - updates
