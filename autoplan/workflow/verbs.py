"""Search, simulate, lower: from a question to an answer, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, Problem
from autoplan.files.data import is_file
from autoplan.files.problems import Problems
from autoplan.files.program import parse_program
from autoplan.files.text import read_json
from autoplan.ir.program import Program
from autoplan.ir.timeline import Timeline
from autoplan.lower import lower
from autoplan.lower.check import check
from autoplan.presets import build_plan
from autoplan.search import Ranked, Request, SearchResult, search
from autoplan.simulate import simulate
from autoplan.workflow.documents import kind_of, load_plan, price_plan
from autoplan.workflow.goals import check_goal, rank_plans
from autoplan.workflow.prediction import Priced, Work, predicted_document, price
from autoplan.workflow.question import Inputs, Question, load_machine, resolve

RANKED = 16
"""Plans that a goal other than time chooses from."""


@dataclass(frozen=True)
class SearchAnswer:
    """What a search found.

    Attributes:
        inputs: what was asked.
        plans: best first.
        baselines: name -> plain choice, or why it does not fit or apply.
        search: the `search` object of plan files.
    """

    inputs: Inputs
    plans: tuple[Priced, ...]
    baselines: Mapping[str, Priced | str]
    search: Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """The one plan that a question names.

    Attributes:
        priced: the plan and what it costs.
        assumed: values that nobody gave.
        warnings: what its file says otherwise.
        search: how it was found, as its file says.
    """

    priced: Priced
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    search: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Simulation:
    """A simulated step.

    Attributes:
        target: the plan, or None where a Program file was given.
        timeline: with spans.
        predicted: the numbers.
        capacity: bytes of a device.
        title: what was simulated, for people.
    """

    target: Target | None
    timeline: Timeline
    predicted: Mapping[str, Any]
    capacity: int
    title: str


@dataclass(frozen=True)
class Lowering:
    """A plan and its checked Program."""

    target: Target
    program: Program


def plan_search(
    question: Question,
    top: int = 5,
    progress: Callable[[str], None] | None = None,
    goal: str = "time",
) -> SearchAnswer:
    """The best plans for a model on a machine.

    Args:
        question: model and machine; pins restrict the search.
        top: how many plans to return.
        progress: told now and then how far the search is.
        goal: what is best; see `goals`. Counting devices is `machines.rank_machines`'s.

    Raises:
        InputError: bad question or goal; every problem at once.
        InfeasibleError: nothing fits.
    """
    asked = resolve(question)
    check_goal(goal, {question.machine: asked.hardware})
    return answer_of(asked, goal, top, progress)


def answer_of(
    asked: Inputs, goal: str, top: int, progress: Callable[[str], None] | None
) -> SearchAnswer:
    """The search that `plan_search` promises, for a question that is understood."""
    request = Request(
        asked.graph, asked.config, asked.hardware, asked.stack, asked.workload, asked.pins,
        top if goal == "time" else max(top, RANKED), progress,
    )  # fmt: skip
    result = search(request)

    def priced(ranked: Ranked) -> Priced:
        return price(asked.graph, ranked.plan, ranked.timeline)

    baselines: dict[str, Priced | str] = {
        name: entry if isinstance(entry, str) else priced(entry)
        for name, entry in result.baselines.items()
    }
    plans = rank_plans([priced(ranked) for ranked in result.plans], goal)
    return SearchAnswer(asked, tuple(plans[:top]), baselines, search_document(result, baselines))


def search_document(result: SearchResult, baselines: Mapping[str, Priced | str]) -> dict[str, Any]:
    """The `search` object of a plan file."""
    return {
        "candidates": result.candidates,
        "seconds": result.seconds,
        "lower_bound_s": result.lower_bound_s,
        "gap": result.gap,
        "space": result.space,
        "refused": dict(result.refused),
        "baselines": {name: _baseline(entry) for name, entry in baselines.items()},
        "stopped_by": result.stopped_by,
    }


def _baseline(entry: Priced | str) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"refused": entry}
    keys = ("step_time_s", "step_time_interval_s", "tokens_per_s", "mfu", "peak_memory_bytes")
    return {"parallel": dict(entry.parallel), **{key: entry.predicted[key] for key in keys}}


def find_plan(question: Question, spans: bool = False) -> Target:
    """The plan in a file, or the one that pins and stack defaults describe.

    Args:
        question: a plan file alone, or a model and a machine.
        spans: whether the timeline lists what happens when.

    Raises:
        InputError: every problem at once.
    """
    if not question.machine:
        _check_alone(question)
        loaded = load_plan(question.subject)
        priced = loaded.priced
        priced = price_plan(priced.graph, priced.plan, spans=True) if spans else priced
        return Target(priced, (), loaded.warnings, loaded.search)
    asked = resolve(question)
    machine = (asked.hardware, asked.stack)
    plan = build_plan(asked.graph, asked.config, machine, asked.workload, asked.pins)
    return Target(price_plan(asked.graph, plan, spans), asked.assumed)


def _check_alone(question: Question) -> None:
    """A plan file says everything itself."""
    problems = list(question.problems)
    if not is_file(Path(question.subject)):
        found = f"`{question.subject}` alone"
        allowed = "a plan file, or a model and then a machine"
        problems.append(Problem("arguments", "", found, allowed))
    given: dict[str, object] = {"--pin": question.pins, "--set": question.overrides}
    given["--stack"] = question.stack
    given |= {f"--{k.replace('_', '-')}": v for k, v in question.options.given.items()}
    for flag, value in given.items():
        if value not in ((), None):
            allowed = "nothing: a plan file says this itself; give MODEL HARDWARE to change it"
            problems.append(Problem(flag, "", str(value), allowed))
    if problems:
        raise InputError(problems)


def plan_simulate(question: Question) -> Simulation:
    """The predicted step of a plan file, of a Program file on a machine, or of pins.

    Raises:
        InputError: every problem at once.
        CheckError: a Program file breaks an invariant.
    """
    path = Path(question.subject)
    if is_file(path) and kind_of(read_json(path, finite=False)) == "program":
        return _simulate_program(question)
    target = find_plan(question, spans=True)
    priced = target.priced
    capacity = priced.plan.hardware.device.memory
    return Simulation(target, priced.timeline, priced.predicted, capacity, priced.plan.model.name)


def _simulate_program(question: Question) -> Simulation:
    problems = Problems(question.subject)
    program = problems.attempt(lambda: parse_program(read_json(question.subject), question.subject))
    hardware = stack = None
    if question.machine:
        hardware, stack = load_machine(question, problems)
    else:
        problems.found.append(
            Problem("HARDWARE", "", "nothing", "a machine after the program, which names none")
        )
    problems.check()
    if not (program and hardware and stack):
        raise AssertionError("without problems there are inputs")
    if len(program.ranks) > hardware.count or program.ranks[-1] >= hardware.count:
        found = f"{hardware.count} devices"
        raise InputError(Problem("HARDWARE", "", found, f"at least {program.ranks[-1] + 1}"))
    check(program)
    timeline = simulate(program, hardware, stack, spans=True)
    tokens = program.batch * program.micro_batches * program.seq_len
    work = Work(tokens, len(program.ranks))
    predicted = predicted_document(timeline, work, hardware, stack)
    title = f"{question.subject} on {question.machine}"
    return Simulation(None, timeline, predicted, hardware.device.memory, title)


def plan_lower(question: Question) -> Lowering:
    """The Program of a plan file or of pins, checked.

    Raises:
        InputError: every problem at once.
        CheckError: the Program breaks an invariant.
    """
    target = find_plan(question)
    program = lower(target.priced.graph, target.priced.plan)
    check(program)
    return Lowering(target, program)
