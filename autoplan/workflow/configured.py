"""A configuration of other software as a question, and what a search finds beside it.

What was typed beside the configuration wins over it; what the configuration says of the model must
be true of the model that was named. Where it starts a known number of devices, a machine without a
size has that many, and one with a size must have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

from autoplan.errors import InfeasibleError, InputError, Problem
from autoplan.files.data import bundled_names
from autoplan.files.hf_config import FOLDER as MODELS
from autoplan.files.hf_config import load_model
from autoplan.files.launch_config import read_launch
from autoplan.files.machine_spec import load_hardware, split_spec
from autoplan.files.problems import Problems
from autoplan.files.run_logs import read_logged
from autoplan.ir.launch import Launch
from autoplan.ir.model import DecoderConfig
from autoplan.ir.record import Record, Shape
from autoplan.presets import DEGREES, parse_pins
from autoplan.units import GIB
from autoplan.workflow.prediction import Priced
from autoplan.workflow.question import Options, Question
from autoplan.workflow.shortlist import pin_text
from autoplan.workflow.verbs import plan_search

SAID = {
    "layers": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads",
    "head_dim": "head_dim", "ffn": "ffn", "gated": "gated",
}  # fmt: skip
"""Fields of a shape that a named model must have -> its own."""


@dataclass(frozen=True)
class Configured:
    """A configuration, as a question.

    Attributes:
        launch: what the file says.
        question: the same, asked of a model and a machine.
        typed: keys that were pinned beside it.
        measured: what the file measured, if it is a log, by the names of `--measured`.
        notes: what follows from the file and was not typed, for people.
    """

    launch: Launch
    question: Question
    typed: frozenset[str]
    measured: Mapping[str, float]
    notes: tuple[str, ...]

    def blame(self, error: InputError) -> InputError:
        """The error with the file named where the file is to blame."""
        ours = set(self.launch.pins) - self.typed
        return InputError([self._blamed(problem, ours) for problem in error.problems])

    def _blamed(self, problem: Problem, ours: set[str]) -> Problem:
        if problem.source != "--pin" or problem.field not in (*ours, "degrees"):
            return problem
        return replace(problem, source=self.launch.source)


def read_configured(question: Question, path: str) -> Configured:
    """The question that a configuration asks.

    Args:
        question: what was typed: a model and a machine, or a machine alone as its subject.
        path: of the configuration, or of a training log that has one.

    Raises:
        InputError: every problem of the file, and of the model and machine that it needs, at once.
    """
    problems = Problems(path, list(question.problems))
    read = problems.attempt(lambda: read_logged(path) or (read_launch(path), None))
    if read is None:
        raise InputError(problems.found)
    launch, record = read
    subject, machine = question.subject, question.machine
    if not machine:
        subject, machine = "", subject
    model, subject = _model(launch, subject, question.download, problems)
    machine, count, notes = _machine(launch, machine, problems)
    options = _options(launch, question.options, count, problems)
    problems.check()
    typed = _typed(question)
    pins = [f"{key}={_word(value)}" for key, value in launch.pins.items() if key not in typed]
    asked = replace(
        question,
        subject=subject,
        machine=machine,
        stack=question.stack or launch.stack,
        pins=(*pins, *question.pins),
        options=options,
        model=model,
        problems=(),
    )
    return Configured(launch, asked, typed, _measured(record), notes)


def _measured(record: Record | None) -> dict[str, float]:
    """Of a log, what `--measured` would say."""
    if record is None:
        return {}
    memory = record.measured.peak_mem_gib
    values = {"step_time": record.step_time, "memory": memory * GIB if memory else None}
    return {name: value for name, value in values.items() if value}


def _typed(question: Question) -> frozenset[str]:
    """Keys that were pinned on the command line."""
    try:
        return frozenset(parse_pins(question.pins))
    except InputError:
        return frozenset()  # they are reported when the question is resolved


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _model(
    launch: Launch, subject: str, download: bool, problems: Problems
) -> tuple[DecoderConfig | None, str]:
    """The model that was named, or that the file describes or names."""
    if not subject and launch.model:
        return launch.model, launch.source
    if not subject:
        subject = launch.name
        try:
            return load_model(subject, download), subject
        except InputError as error:
            called = f"`{launch.name}`" if launch.name else "no model"
            allowed = "a model before the machine: the file does not describe all of it"
            hint = error.problems[0].hint or f"one of {', '.join(bundled_names(MODELS)[:4])}, ..."
            problems.found.append(Problem("MODEL", "", called, allowed, hint))
            return None, subject
    model = problems.attempt(lambda: load_model(subject, download))
    if model is not None:
        _check_shape(launch.shape, model, launch.source, problems)
    return model, subject


def _check_shape(shape: Shape, model: DecoderConfig, source: str, problems: Problems) -> None:
    """What the file says of a model is true of the one that was named."""
    for field, own in SAID.items():
        said, has = getattr(shape, field), getattr(model, own)
        if said is not None and said != has:
            allowed = f"{has}, as {model.name} has, or no other model named"
            problems.found.append(Problem(source, field, str(said), allowed))
    if shape.experts:
        allowed = f"none, as {model.name} has"
        problems.found.append(Problem(source, "experts", str(shape.experts), allowed))


def _machine(
    launch: Launch, spec: str, problems: Problems
) -> tuple[str, int | None, tuple[str, ...]]:
    """The machine with the devices that the file starts, their number, and what was taken over."""
    notes: tuple[str, ...] = ()
    if spec and launch.devices and not split_spec(spec)[1]:
        spec = f"{spec}:{launch.devices}"
        notes = (f"{launch.devices} devices, as {launch.source} starts",)
    hardware = problems.attempt(lambda: load_hardware(spec))
    if hardware and launch.devices and hardware.count != launch.devices:
        allowed = f"{launch.devices} devices, as {launch.source} starts"
        problems.found.append(Problem("HARDWARE", "", f"{hardware.count} devices", allowed))
    return spec, hardware.count if hardware else None, notes


def _options(launch: Launch, typed: Options, devices: int | None, problems: Problems) -> Options:
    """What was typed, and for the rest what the file says."""
    table = {**launch.options, **typed.given}
    if launch.per_replica and devices and "global_batch_size" not in table:
        degrees = [
            value for key, value in launch.pins.items()
            if key in DEGREES and key != "dp" and isinstance(value, int)
        ]  # fmt: skip
        replicas = devices // prod(degrees)
        table["global_batch_size"] = launch.per_replica * max(replicas, 1)
    for name, flag in (("global_batch_size", "--global-batch-size"), ("seq_len", "--seq-len")):
        if name not in table:
            allowed = f"{flag}: {launch.source} does not say it"
            problems.found.append(Problem(flag, "", "nothing", allowed))
    names = [field.name for field in fields(Options)]
    return Options(**{name: table[name] for name in names if name in table})


def config_document(
    configured: Configured, priced: Priced, measured: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What was read, and whether a run was as fast as it should be, for `--json`.

    Args:
        configured: the configuration.
        priced: its plan.
        measured: rows of `measured.compare_measured`.
    """
    launch = configured.launch
    return {
        "file": launch.source,
        "stack": launch.stack,
        "model": launch.name or None,
        "devices": launch.devices,
        "pins": {key: _plain(value) for key, value in launch.pins.items()},
        "options": dict(launch.options),
        "not_understood": list(launch.unread),
        "not_priced": list(launch.unpriced),
        "run": _run(priced, measured),
    }


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _run(priced: Priced, measured: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Whether the step that was measured is what this configuration should take."""
    own = priced.timeline.step_time
    for row in measured:
        if row["name"] != "memory":
            value = float(row["measured"])
            seconds = value if row["name"] == "step_time" else own * row["predicted"] / value
            low, high = priced.interval
            verdict = "slower" if seconds > high else "faster" if seconds < low else "as_predicted"
            return {"step_time_s": seconds, "slower": seconds / own - 1, "verdict": verdict}
    return None


def better_plan(
    configured: Configured,
    priced: Priced,
    config: Mapping[str, Any],
    progress: Callable[[str], None] | None,
) -> dict[str, Any]:
    """The best plan of a search with the same model, machine, batch and software, beside a plan.

    Args:
        configured: the configuration.
        priced: its plan.
        config: its document.
        progress: told now and then how far the search is.
    """
    question = replace(configured.question, pins=())
    try:
        best = plan_search(question, 1, progress).plans[0]
    except (InfeasibleError, InputError) as error:
        return {"refused": str(error).splitlines()[0]}
    seconds, own = best.timeline.step_time, priced.timeline.step_time
    run = config["run"]
    return {
        "parallel": dict(best.parallel),
        "pins": pin_text(best.parallel),
        "predicted": dict(best.predicted),
        "verdict": best.verdict,
        "faster": 1 - seconds / own,
        "ties": best.ties(priced),
        # As much above or below its prediction as the run was.
        "expected_step_time_s": seconds * (1 + run["slower"]) if run else None,
    }
