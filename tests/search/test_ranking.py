"""Law: plans are the same to people if all that they would say of them is; the fastest stays."""

from __future__ import annotations

from dataclasses import replace

from autoplan.describe import describe
from autoplan.ir.machine import Level
from autoplan.lower import lower
from autoplan.presets import build_plan, parse_pins
from autoplan.search import Ranked
from autoplan.search.ranking import distinct, plan_name, stage_totals
from autoplan.simulate import simulate
from tests.search.cases import TINY, machine, request

ASKED = request(TINY, machine(Level("gpu", 4, 1e9, 0.0)), 8, 16)


def row(pins: str) -> Ranked:
    """A plain plan with its step."""
    kinds = (ASKED.hardware, ASKED.stack)
    plan = build_plan(ASKED.graph, TINY, kinds, ASKED.workload, parse_pins([pins]))
    return Ranked(plan, simulate(lower(ASKED.graph, plan), ASKED.hardware, ASKED.stack))


def test_equal_words_and_times_are_one_plan():
    first = row("tp=2,dp=2")
    assert distinct(ASKED.graph, [first, first]) == [first]


def test_equal_words_and_other_times_are_two():
    first = row("tp=2,dp=2")
    slower = replace(first.timeline, step_time=2 * first.timeline.step_time)
    second = Ranked(first.plan, slower)
    assert distinct(ASKED.graph, [second, first]) == [first, second]


def test_the_order_of_axes_does_not_matter_where_the_machine_does_not_care():
    first, second = row("tp=2,dp=2,order=tp-dp"), row("tp=2,dp=2,order=dp-tp")
    assert first.plan != second.plan
    assert len(distinct(ASKED.graph, [first, second])) == 1
    assert plan_name(ASKED.graph, first.plan) != plan_name(ASKED.graph, second.plan)


def test_other_degrees_are_other_plans():
    rows = [row("tp=2,dp=2"), row("cp=4"), row("pp=2,dp=2"), row("dp=4")]
    kept = distinct(ASKED.graph, rows)
    assert len(kept) == len({plan_name(ASKED.graph, r.plan) for r in rows}) == 4
    assert [r.timeline.step_time for r in kept] == sorted(r.timeline.step_time for r in rows)
    assert {describe(ASKED.graph, r.plan)["tp"] for r in kept} == {1, 2}


def test_totals_are_all_lines_of_each_stage():
    timeline = row("pp=2,dp=2").timeline
    totals = stage_totals(timeline)
    assert len(totals) == 2
    assert totals == [sum(lines.values()) for lines in timeline.peak_memory]
