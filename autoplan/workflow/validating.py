"""Validate plans: run each here, and put the measured step beside the predicted one, by part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, Problem
from autoplan.files.data import is_file
from autoplan.files.problems import Problems
from autoplan.validate.statistics import errors_of, pair_order, regret, spearman
from autoplan.workflow.documents import load_plan
from autoplan.workflow.prediction import Priced
from autoplan.workflow.question import Question
from autoplan.workflow.running import AS_PLANNED, RunReport, RunRequest, plan_run

LEAST_ORDERED = 2
"""Plans from which there is an order."""


@dataclass(frozen=True)
class Validation:
    """Plans that were run.

    Attributes:
        names: their files.
        runs: what each did, in its own precision.
        notes: what differs from what the files say.
    """

    names: tuple[str, ...]
    runs: tuple[RunReport, ...]
    notes: tuple[str, ...]

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`; errors are predicted/measured - 1."""
        rows = [_row(name, run) for name, run in zip(self.names, self.runs, strict=True)]
        predicted = [row["predicted_step_time_s"] for row in rows]
        measured = [row["measured_step_time_s"] for row in rows]
        right, pairs = pair_order(predicted, measured)
        several = len(rows) >= LEAST_ORDERED
        return {
            "plans": rows,
            "step_time": asdict(errors_of([row["error"] for row in rows])),
            "spearman": spearman(predicted, measured) if several else None,
            "pair_order": right / pairs if pairs else None,
            "regret": regret(predicted, measured) if several else None,
        }


def validate_plans(
    paths: Sequence[str],
    steps: int,
    flaws: Sequence[Problem] = (),
    progress: Callable[[str], None] | None = None,
) -> Validation:
    """Run plans on this machine, one after the other.

    Args:
        paths: plan files.
        steps: of each run; the first warms up and is left out where there are more.
        flaws: of options, known already.
        progress: told which plan is running.

    Raises:
        InputError: what is wrong with options and files; every problem at once.
        LaunchError: a worker died or hung.
    """
    problems = Problems("validate", list(flaws))
    if not paths:
        found, allowed = "nothing to compare", "plan files, or recorded runs after --runs"
        problems.found.append(Problem("arguments", "", found, allowed))
    for path in paths:
        problems.attempt(lambda path=path: _check(path))  # type: ignore[misc]
    problems.check()
    runs, notes = [], []
    for number, path in enumerate(paths, start=1):
        if progress:
            progress(f"running {path} ({number} of {len(paths)})")
        request = RunRequest(steps=steps, verify=False, precision=AS_PLANNED)
        run = plan_run(Question(path, ""), request)
        notes += [f"{path}: {note}" for note in (*run.warnings, *run.notes)]
        runs.append(run)
    return Validation(tuple(paths), tuple(runs), tuple(notes))


def _check(path: str) -> None:
    if not is_file(Path(path)):
        raise InputError(Problem("arguments", "", f"`{path}`", "a plan file"))
    load_plan(path)


def _row(name: str, run: RunReport) -> dict[str, Any]:
    document, priced = run.document, run.priced
    assert document is not None, "without torchrun there is a report"
    measured, predicted = document["measured"], priced.predicted
    seconds = measured["step_time_s"]
    low, high = priced.interval
    return {
        "file": name,
        "parallel": dict(priced.parallel),
        "hardware": f"{priced.plan.hardware.name}:{priced.plan.hardware.count}",
        "predicted_step_time_s": predicted["step_time_s"],
        "step_time_interval_s": [low, high],
        "measured_step_time_s": seconds,
        "measured_step_times_s": measured["step_times_s"],
        "error": predicted["step_time_s"] / seconds - 1,
        "within": low <= seconds <= high,
        "parts": _parts(priced, document),
    }


def _parts(priced: Priced, document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Kind of action -> busy seconds of a step, predicted and measured, mean over devices.

    A measured transfer includes the wait for whoever is at its other end.
    """
    sizes = [stage.mesh.size for stage in priced.plan.stages]
    predicted: defaultdict[str, float] = defaultdict(float)
    measured: defaultdict[str, float] = defaultdict(float)
    for span in priced.timeline.spans:
        share = sizes[span.stage] / sum(sizes)
        predicted[_kind(span.name)] += (span.end - span.start) * share
    for span in document["timeline"]:
        measured[_kind(span["name"])] += (span["end"] - span["start"]) / sum(sizes)
    return {
        kind: {"predicted": predicted[kind], "measured": measured[kind]}
        for kind in sorted(predicted.keys() | measured.keys())
    }


def _kind(name: str) -> str:
    return name.partition(" ")[0]
