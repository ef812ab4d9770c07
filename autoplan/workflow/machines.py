"""One model, one question, several machines: a row each, ranked by the goal.

All machines answer about the same batch: the largest that any of them assumes, unless it is given.
A machine on which nothing fits has a row that says so; only where none fits is the question
infeasible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoplan.errors import InfeasibleError, InputError, Problem
from autoplan.workflow.goals import UNITS, goal_problems, score
from autoplan.workflow.ladder import Rung, climb, needed
from autoplan.workflow.question import Inputs, Question, resolve
from autoplan.workflow.verbs import SearchAnswer, answer_of, search_document

Progress = Callable[[str], None] | None


@dataclass(frozen=True)
class MachineAnswer:
    """What one machine can do.

    Attributes:
        spec: HARDWARE as typed.
        inputs: what was asked.
        answer: plans, or None where nothing fits.
        error: why nothing fits, or None.
        ladder: sizes of the machine, where devices are counted.
    """

    spec: str
    inputs: Inputs
    answer: SearchAnswer | None
    error: InfeasibleError | None = None
    ladder: tuple[Rung, ...] = ()

    def document(self, goal: str) -> dict[str, Any]:
        """The row of a machine, for `--json`."""
        best = self.answer.plans[0] if self.answer else None
        row: dict[str, Any] = {
            "hardware": self.spec,
            "devices": best.devices if best else None,
            "parallel": dict(best.parallel) if best else None,
            "verdict": best.verdict if best else "no",
            "step_time_s": best.predicted["step_time_s"] if best else None,
            "tokens_per_s": best.predicted["tokens_per_s"] if best else None,
            "score": score(best, goal) if best else None,
            "unit": UNITS[goal],
            "refused": str(self.error) if self.error else None,
        }
        return row | ({"ladder": [rung.document for rung in self.ladder]} if self.ladder else {})


@dataclass(frozen=True)
class Ranking:
    """Machines, best first; those on which nothing fits last.

    Attributes:
        goal: what they are ranked by.
        machines: at least one of them has an answer.
    """

    goal: str
    machines: tuple[MachineAnswer, ...]

    @property
    def answers(self) -> tuple[SearchAnswer, ...]:
        """Those of machines on which something fits."""
        return tuple(machine.answer for machine in self.machines if machine.answer)


def rank_machines(
    question: Question, specs: Sequence[str], goal: str = "time", top: int = 5,
    progress: Progress = None,
) -> Ranking:  # fmt: skip
    """The best plans on each of several machines.

    Args:
        question: model and options; `question.machine` is not read.
        specs: HARDWARE, one or more.
        goal: of `goals.GOALS`; `devices` climbs each machine's ladder.
        top: plans of each machine.
        progress: told now and then how far the search is.

    Raises:
        InputError: bad question, machine or goal; every problem at once.
        InfeasibleError: nothing fits on any machine.
    """
    asked = _resolve_all(question, specs)
    problems = goal_problems(goal, {spec: one.hardware for spec, one in asked.items()})
    if problems:
        raise InputError(problems)
    rows = [_ask(spec, one, goal, top, _prefixed(progress, spec)) for spec, one in asked.items()]
    if all(row.answer is None for row in rows):
        raise _nothing_fits(rows)
    return Ranking(goal, tuple(sorted(rows, key=lambda row: _order(row, goal))))


def _resolve_all(question: Question, specs: Sequence[str]) -> dict[str, Inputs]:
    """Every machine's inputs, with one batch; every problem of all machines at once."""
    asked: dict[str, Inputs] = {}
    problems: dict[Problem, None] = {}
    for spec in dict.fromkeys(specs):
        try:
            asked[spec] = resolve(replace(question, machine=spec))
        except InputError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise InputError(list(problems))
    batch = max(one.workload.global_batch_size for one in asked.values())
    return {
        spec: one if one.workload.global_batch_size == batch
        else resolve(replace(question, machine=spec, batch=batch))
        for spec, one in asked.items()
    }  # fmt: skip


def _prefixed(progress: Progress, spec: str) -> Progress:
    return None if progress is None else lambda text: progress(f"{spec}: {text}")


def _ask(spec: str, asked: Inputs, goal: str, top: int, progress: Progress) -> MachineAnswer:
    if goal == "devices":
        return _count(spec, asked, progress)
    try:
        return MachineAnswer(spec, asked, answer_of(asked, goal, top, progress))
    except InfeasibleError as error:
        return MachineAnswer(spec, asked, None, error)


def _count(spec: str, asked: Inputs, progress: Progress) -> MachineAnswer:
    """The fewest devices of a machine, as an answer about that many."""
    rungs = climb(asked, progress)
    rung = needed(rungs)
    if rung is None or rung.priced is None or rung.found is None:
        largest = rungs[-1]
        nearest = [largest.knob] if largest.knob else []
        message = f"nothing fits on {spec}, nor on {largest.devices} devices: {largest.limits}"
        return MachineAnswer(spec, asked, None, InfeasibleError(message, {}, nearest), tuple(rungs))
    inputs = replace(asked, hardware=rung.priced.plan.hardware)
    answer = SearchAnswer(inputs, (rung.priced,), {}, search_document(rung.found, {}))
    return MachineAnswer(spec, inputs, answer, None, tuple(rungs))


def _order(row: MachineAnswer, goal: str) -> tuple[bool, float]:
    return (row.answer is None, score(row.answer.plans[0], goal) if row.answer else 0.0)


def _nothing_fits(rows: Sequence[MachineAnswer]) -> InfeasibleError:
    errors = [row.error for row in rows if row.error]
    if len(errors) == 1:
        return errors[0]
    refused: dict[str, int] = {}
    for error in errors:
        for reason, count in error.refused.items():
            refused[reason] = refused.get(reason, 0) + count
    firsts = [str(error).splitlines()[0] for error in errors]
    nearest = [f"{row.spec}: {change}" for row in rows if row.error for change in row.error.nearest]
    return InfeasibleError("\n".join(firsts), refused, nearest)
