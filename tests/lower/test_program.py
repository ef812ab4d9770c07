"""Laws: a plan that does not fit is an InputError with all its problems, nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import InputError
from autoplan.ir.layout import B, P, S
from autoplan.ir.plan import Home, Plan, Run, Schedule, StagePlan, Stored, Strategy
from autoplan.ir.program import COLLECTIVES
from autoplan.lower import lower
from autoplan.lower.check import check
from tests.plans import TINY_GPT, TINY_LLAMA, Choices, make_graph, make_plan

GRAPH = make_graph()


def plan_of(**changes) -> Plan:
    return make_plan(GRAPH, TINY_LLAMA, Choices(("heads",), **changes))


def with_strategy(plan: Plan, key: str, **parts) -> Plan:
    old = plan.strategies[key]
    new = replace(old, **{k: {**getattr(old, k), **v} for k, v in parts.items()})
    return replace(plan, strategies={**plan.strategies, key: new})


def without(plan: Plan, key: str, part: str, name: str) -> Plan:
    old = plan.strategies[key]
    left = {k: v for k, v in getattr(old, part).items() if k != name}
    return replace(plan, strategies={**plan.strategies, key: replace(old, **{part: left})})


def with_runs(plan: Plan, *runs: tuple[Run, ...]) -> Plan:
    stages = zip(plan.stages, runs, strict=True)
    return replace(plan, stages=tuple(StagePlan(stage.mesh, own) for stage, own in stages))


def problems(plan: Plan) -> list[str]:
    with pytest.raises(InputError) as caught:
        lower(GRAPH, plan)
    assert all(problem.found and problem.allowed for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


BLOCKS = Run("embedding", 1), Run("layer", 2), Run("head", 1)


def chunked(second: str = "layer") -> Plan:
    """Four chunks of one block each on two stages."""
    plan = plan_of(stages=2, family="interleaved")
    first = Run("embedding", 1), Run(second, 1, chunk=1)
    return with_runs(plan, first, (Run("layer", 1), Run("head", 1, chunk=1)))


def with_two_homes() -> Plan:
    """One layer hands over to the other in a layout of their own."""
    plan, home = chunked("layer#2"), Home((S("s"),), (S("s"),))
    layer = plan.strategies["layer"]
    second = replace(layer, homes={**layer.homes, "x": home})
    plan = replace(plan, strategies={**plan.strategies, "layer#2": second})
    return with_strategy(plan, "layer", homes={"mlp": home})


ILLEGAL = {
    "too few blocks": (lambda p: with_runs(p, BLOCKS[:2]), "3 blocks"),
    "a stage without blocks": (
        lambda p: with_runs(plan_of(stages=2), BLOCKS, ()), r"\$\.stages\[1\]: found no block",
    ),
    "a block in the wrong place": (
        lambda p: with_runs(p, (BLOCKS[1], BLOCKS[0], BLOCKS[2])), "strategy `layer`",
    ),
    "a chunk without blocks": (
        lambda p: with_runs(chunked(), BLOCKS[:2], (replace(BLOCKS[2], chunk=1),)),
        r"\$\.stages\[0\]: found no block in chunk 1",
    ),
    "a schedule of chunks without any": (
        lambda p: replace(plan_of(stages=2), schedule=Schedule("interleaved", 2)),
        "interleaved, with 1 chunks",
    ),
    "chunks in a schedule of whole stages": (
        lambda p: replace(chunked(), schedule=Schedule("1f1b", 2)), "1f1b, with 2 chunks",
    ),
    "chunks on one stage": (
        lambda p: with_runs(p, (*BLOCKS[:2], replace(BLOCKS[2], chunk=1))), "one stage, with 2",
    ),
    "turns that are not whole": (
        lambda p: replace(chunked(), schedule=Schedule("interleaved", 5)),
        "2 equal turns over 2 stages",
    ),
    "chunks that are received in two layouts": (
        lambda p: with_two_homes(), "as elsewhere on stage 0",
    ),
    "micro-batches that do not divide": (
        lambda p: replace(p, schedule=Schedule("1f1b", 3)), "a divisor of global_batch_size 8",
    ),
    "a missing home": (lambda p: without(p, "layer", "homes", "attention"), "no attention"),
    "a missing split": (lambda p: without(p, "layer", "splits", "q"), "no q"),
    "a missing stored layout": (lambda p: without(p, "head", "stored", "head"), "no head"),
    "a split too many": (
        lambda p: with_strategy(p, "layer", splits={"q": ("g", None)}), "2 choices",
    ),
    "an unknown operator": (lambda p: with_strategy(p, "layer", splits={"z": ("b",)}), "found z"),
    "a dim that must be whole": (
        lambda p: with_strategy(p, "layer", splits={"attention": ("d",)}), "needs d whole",
    ),
    "a dim that a tensor lacks": (
        lambda p: with_strategy(p, "layer", saved={"attended": (S("m"),)}), "no dim m",
    ),
    "a saved layout of what does not wait": (
        lambda p: with_strategy(p, "layer", saved={"q": (B,)}), "found q",
    ),
    "a gradient that nobody leaves partial": (
        lambda p: with_strategy(p, "layer", homes={"attention": Home((B,), (P(),))}),
        "cannot become",
    ),
    "a stored gradient that nobody leaves partial": (
        lambda p: with_strategy(p, "layer", stored={"w_q": Stored((B,), (P(),), (B,))}),
        "cannot become",
    ),
    "neighbours that differ": (
        lambda p: with_strategy(p, "head", homes={"x": Home((S("b"),), (S("b"),))}), "as `layer`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ILLEGAL)
def test_illegal_plans_are_refused(what):
    change, words = ILLEGAL[what]
    with pytest.raises(InputError, match=words):
        lower(GRAPH, change(plan_of()))


def test_all_problems_at_once():
    plan = with_strategy(plan_of(), "layer", homes={"attention": Home((P(),), (B,))})
    plan = with_strategy(plan, "head", splits={"loss": ("c",)})
    assert len(problems(plan)) == 2


def test_uses_of_a_tied_parameter_must_store_it_alike():
    graph = make_graph(TINY_GPT)
    plan = make_plan(graph, TINY_GPT, Choices(("batch",)))
    stored = Stored((S("m"),), (S("m"),), (S("m"),))
    with pytest.raises(InputError, match="different layouts of embedding"):
        lower(graph, with_strategy(plan, "head", stored={"embedding": stored}))


def test_a_gradient_is_whole_when_it_crosses_stages():
    plan = plan_of(stages=2)
    partial = {"homes": {"x": Home((B,), (P(),)), "mlp": Home((B,), (P(),))}}
    found = problems(with_strategy(plan, "layer", **partial))
    assert any("not partial" in problem for problem in found)


def test_readers_share_a_transition():
    """Norm's result is gathered once for queries, keys and values, and again in backward."""
    plan = plan_of()
    layer = plan.strategies["layer"]
    splits = {**layer.splits, "attention_norm": ("s",)}
    home = Home((B,), (P(),))
    changed = Strategy(
        "layer", splits, {**layer.homes, "attention_norm.out": home}, {}, layer.stored
    )
    stored = {"attention_norm": replace(layer.stored["attention_norm"], gradient=(P(),))}
    plan = replace(plan, strategies={**plan.strategies, "layer": changed})
    program = lower(GRAPH, with_strategy(plan, "layer", stored=stored))
    check(program)
    forward = program.stages[0].segments["layer/F"]
    moved = [forward.registers[i.outs[0]].name for i in forward.code if i.op in COLLECTIVES]
    assert moved.count("attention_norm.out") == 1
