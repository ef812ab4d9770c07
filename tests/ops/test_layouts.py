"""Laws: illegal strategies are refused with a reason; every move of a legal one has a route."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.boxing import route
from autoplan.errors import Refusal
from autoplan.ir.layout import B, P, S
from autoplan.ir.plan import Home, Stored
from autoplan.ops import BlockLayouts
from tests.plans import TINY_GPT, TINY_LLAMA, Choices, make_graph, make_plan

SIZES = (2,)


@pytest.fixture(params=[TINY_LLAMA, TINY_GPT], ids=["llama", "gpt"])
def parts(request):
    graph = make_graph(request.param)
    plan = make_plan(graph, request.param, Choices(("heads",)))
    return graph.blocks["layer"], plan.strategies["layer"], {**graph.extent, "b": 4}


def test_every_move_of_a_legal_strategy_has_a_route(parts):
    block, strategy, extent = parts
    layouts = BlockLayouts(block, strategy)
    layouts.check(SIZES, extent)
    moves = list(layouts.moves())
    assert {name for name, _, _ in moves} >= {"x", "q", "d.x", "w_q", "d.w_q"}
    for name, source, target in moves:
        dims = block.tensors[name].dims
        route(source, target, dims, tuple(extent[dim] for dim in dims), SIZES)


def changed(strategy, **parts):
    return replace(strategy, **{k: {**getattr(strategy, k), **v} for k, v in parts.items()})


ILLEGAL = {
    "a dim that must stay whole": ({"splits": {"attention": ("d",)}}, "needs d whole"),
    "a dim that does not divide": ({"homes": {"x": Home((S("q"),), (B,))}}, "no dim q"),
    "a partial home": ({"homes": {"attention": Home((P(),), (B,))}}, "partial at home"),
    "a gradient that nobody leaves partial": (
        {"homes": {"attention": Home((B,), (P(),))}}, "cannot become",
    ),
    "a saved layout of a missing dim": ({"saved": {"attended": (S("m"),)}}, "no dim m"),
    "a saved layout that is partial": ({"saved": {"attended": (P(),)}}, "cannot become"),
    "state that is partial": (
        {"stored": {"w_o": Stored((B,), (B,), (P(),))}}, "stored as partial sums",
    ),
    "a gradient partial beyond what backward leaves": (
        {"stored": {"w_q": Stored((B,), (P(),), (B,))}}, "cannot become",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ILLEGAL)
def test_illegal_strategies_are_refused(parts, what):
    block, strategy, extent = parts
    change, reason = ILLEGAL[what]
    with pytest.raises(Refusal, match=reason):
        BlockLayouts(block, changed(strategy, **change)).check(SIZES, extent)


def test_odd_sizes_are_refused(parts):
    block, strategy, extent = parts
    with pytest.raises(Refusal, match="does not divide by"):
        BlockLayouts(block, strategy).check((3,), extent)
