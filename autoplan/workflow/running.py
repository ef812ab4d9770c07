"""Run: execute a plan with torch, verify it, and put the measured step beside the predicted one.

A plan runs as it stands, or rehearsed: shrunk to what this machine holds, with the same structure.
The precision of a run is its own, fp64 unless asked otherwise, because that is where verification
is sharpest. Whatever differs from the plan that was named is said in `notes`. The runtime, and
torch with it, is imported inside functions, so that whoever only plans never loads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from autoplan.errors import InputError, Problem, nearest
from autoplan.files.checkpoint import make_room
from autoplan.files.data import is_file
from autoplan.files.workload import parse_precision, precision_document
from autoplan.frontends import step_graph
from autoplan.ir.optimizer import OPTIMIZERS
from autoplan.ir.plan import Plan
from autoplan.ir.program import Program
from autoplan.ir.timeline import COUNTED_LINES, Timeline
from autoplan.ir.workload import PRECISIONS, Precision, Workload
from autoplan.lower import lower
from autoplan.lower.check import check
from autoplan.rehearsal import rehearse
from autoplan.units import format_bytes
from autoplan.workflow.checkpoints import go_on, state_of, unfit
from autoplan.workflow.documents import price_plan
from autoplan.workflow.prediction import Priced
from autoplan.workflow.question import Question
from autoplan.workflow.torchrun import Torchrun, run_under_torchrun
from autoplan.workflow.verbs import find_plan

if TYPE_CHECKING:
    from autoplan.runtime.execute import RunResult
    from autoplan.runtime.session import Settings, Store
    from autoplan.runtime.verify import Trial, Verdict

TRANSPORTS = ("gloo", "lockstep")
DEVICES = ("cpu", "cuda", "npu")
AS_PLANNED = "plan"
"""Precision that stands for the plan's own."""
MOST_PROCESSES = 64
"""On one machine, without torchrun: each is a process with its own torch."""
REFERENCE_SEQUENCES = 8
"""Of a pass of the unsharded reference: bounds its memory."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """How to run.

    Attributes:
        steps: training steps.
        data: any file, or "" for synthetic tokens.
        verify: compare with the unsharded reference.
        rehearse: run a small plan of the same structure.
        precision: a bundle of `PRECISIONS` and what differs from it, or `plan` for the plan's own.
        transport: `gloo`, `lockstep`, or "" for gloo, and lock-step in a rehearsal.
        torchrun: torchrun's flags where it starts the ranks, or None.
        save: folder to leave the state in after the last step, or "".
        resume: checkpoint to begin from, or "" to begin with the seed.
    """

    steps: int = 1
    data: str = ""
    verify: bool = True
    rehearse: bool = False
    precision: str = "fp64"
    transport: str = ""
    torchrun: Torchrun | None = None
    save: str = ""
    resume: str = ""

    @property
    def keeps(self) -> bool:
        """Whether checkpoints are read or written."""
        return bool(self.save or self.resume)


@dataclass(frozen=True)
class Prepared:
    """A plan, ready to run.

    Attributes:
        priced: what is run, and what it should cost.
        program: its Program, checked.
        settings: steps, seed, data, what is recorded.
        trial: what verification needs.
        notes: where it resumes, and what it does otherwise than before.
    """

    priced: Priced
    program: Program
    settings: Settings
    trial: Trial
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunReport:
    """What a run did.

    Attributes:
        priced: what was run, and what it should cost.
        document: the report, or None on a node that does not have process 0.
        notes: what differs from the plan that was named.
        assumed: values that nobody gave.
        warnings: what a plan file says otherwise than derived.
    """

    priced: Priced
    document: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def plan_run(question: Question, request: RunRequest) -> RunReport:
    """Run a plan and verify it. Whether it matched is for the report to say, not for an error.

    Args:
        question: a plan file, or model and machine.
        request: how to run.

    Raises:
        InputError: bad question or request, or a run that this machine cannot hold.
        CheckError: the Program breaks an invariant.
        LaunchError: a worker died or hung.
    """
    target = find_plan(_with_problems(question, request), spans=True)
    priced, notes = _plan_to_run(target.priced, request)
    document: Mapping[str, Any] | None
    if request.torchrun is not None:
        # A checkpoint that does not fit is found here, before any process starts.
        notes += prepare(priced, request).notes if request.keeps else ()
        done = run_under_torchrun(priced, request, request.torchrun)
        document = None if done is None else {**done, "predicted": dict(priced.predicted)}
    else:
        transport = request.transport or ("lockstep" if request.rehearse else "gloo")
        _check_fits_here(priced, transport)
        document, more = _execute(priced, request, transport)
        notes += more
    return RunReport(priced, document, notes, target.assumed, target.warnings)


def _with_problems(question: Question, request: RunRequest) -> Question:
    """The question, with everything that is wrong about the request."""
    problems = list(question.problems)
    if request.steps < 1:
        problems.append(Problem("--steps", "", str(request.steps), "a positive number"))
    for flag, word, allowed in (
        ("--transport", request.transport or "gloo", TRANSPORTS),
        ("--device", request.torchrun.device if request.torchrun else "cpu", DEVICES),
    ):
        if word not in allowed:
            found = f"`{word}`"
            problems.append(Problem(flag, "", found, ", ".join(allowed), nearest(word, allowed)))
    if request.precision != AS_PLANNED:
        try:
            _precision(request.precision)
        except InputError as error:
            problems += error.problems
    if request.data and not is_file(Path(request.data)):
        problems.append(Problem("--data", "", f"`{request.data}`", "a file that can be read"))
    problems += unfit(request.save, request.resume)
    if request.torchrun is not None and request.transport:
        found = f"`{request.transport}`"
        problems.append(Problem("--transport", "", found, "nothing with torchrun's flags"))
    return replace(question, problems=tuple(problems))


def _plan_to_run(priced: Priced, request: RunRequest) -> tuple[Priced, tuple[str, ...]]:
    """The plan as it will be executed, and what differs from the one that was named."""
    plan, notes = priced.plan, []
    if request.rehearse:
        plan = rehearse(plan)
        notes.append(f"rehearsal: {plan.model} on {plan.hardware.name}:{plan.hardware.count}")
        priced = price_plan(step_graph(plan.model, plan.workload), plan, spans=True)
    if request.precision not in (AS_PLANNED, str(plan.workload.precision)):
        precision = _precision(request.precision)
        notes.append(f"runs in {precision}; the plan says {plan.workload.precision}")
        plan = replace(plan, workload=replace(plan.workload, precision=precision))
        # A machine without a peak for this dtype cannot be priced in it: the plan's price stands.
        if precision.compute in plan.hardware.device.peak_flops:
            priced = price_plan(priced.graph, plan, spans=True)
        priced = replace(priced, plan=plan)
    _check_executed(plan.workload)
    return priced, tuple(notes)


def _precision(text: str) -> Precision:
    """The precision that `--precision` of a run names.

    Raises:
        InputError: it names none.
    """
    found: list[Problem] = []
    document = precision_document(text, found)
    if found:
        raise InputError(found)
    try:
        return parse_precision(document, "--precision", "")
    except InputError as error:
        problems = [
            replace(p, field=p.field.strip(".").removesuffix("name")) for p in error.problems
        ]
        raise InputError(problems) from None


def _check_executed(workload: Workload) -> None:
    """Some optimizers and precisions are only priced: InputError where the plan has one."""
    problems = []
    if not workload.optimizer.rule.executed:
        allowed = ", ".join(name for name, rule in OPTIMIZERS.items() if rule.executed)
        found = f"optimizer {workload.optimizer.name}, which is priced but not executed"
        problems.append(Problem("plan", "$.workload.optimizer", found, allowed))
    if not workload.precision.executed:
        allowed = ", ".join(name for name, bundle in PRECISIONS.items() if bundle.executed)
        found = f"{workload.precision}, which is priced but not executed"
        problems.append(Problem("--precision", "", found, allowed))
    if problems:
        raise InputError(problems)


def prepare_file(question: Question, request: RunRequest) -> Prepared:
    """The plan that a question names, ready to run in processes that something else starts.

    Raises:
        InputError: bad question or request; every problem at once.
        CheckError: the Program breaks an invariant.
    """
    target = find_plan(_with_problems(question, request), spans=True)
    priced, _ = _plan_to_run(target.priced, request)
    return prepare(priced, request)


def prepare(priced: Priced, request: RunRequest) -> Prepared:
    """A plan with its Program and everything that the runtime needs.

    Raises:
        InputError: the data cannot be read, or no checkpoint to resume from.
        CheckError: the Program breaks an invariant.
    """
    from autoplan.runtime.data import Shape, open_batches
    from autoplan.runtime.documents import DocumentBatches
    from autoplan.runtime.session import Settings
    from autoplan.runtime.verify import Trial

    plan, graph = priced.plan, priced.graph
    program = lower(graph, plan)
    check(program)
    workload = plan.workload
    shape = Shape(workload.global_batch_size, workload.seq_len, plan.model.vocab)
    batches = open_batches(shape, workload.seed, Path(request.data) if request.data else None)
    if workload.lengths:
        batches = DocumentBatches(batches, workload.lengths, workload.seed)
    longest = max((s.end - s.start for s in priced.timeline.spans), default=0.0)
    store, notes = _store(plan, program, request) if request.keeps else (None, ())
    settings = Settings(
        request.steps, workload.seed, batches, record=request.verify, longest=longest, store=store
    )
    trial = Trial(graph, workload, batches, settings.numbers.start, REFERENCE_SEQUENCES)
    return Prepared(priced, program, settings, trial, notes)


def _store(plan: Plan, program: Program, request: RunRequest) -> tuple[Store, tuple[str, ...]]:
    """The checkpoints of a run, and what is to be said of them."""
    from autoplan.runtime.checkpoint import Checkpoints

    state = state_of(plan, program, request.data)
    first, notes = go_on(Path(request.resume), state) if request.resume else (0, ())
    resume, save = (
        Path(os.path.realpath(folder)) if folder else None
        for folder in (request.resume, request.save)
    )
    if save:
        make_room(save)
    left = replace(state, step=first + request.steps)
    return Checkpoints(first, resume, save, left), notes


def _check_fits_here(priced: Priced, transport: str) -> None:
    """Refuse what would bring this machine to its knees; a rehearsal never does."""
    hint = "--rehearse runs it small"
    problems = []
    if transport == "gloo" and priced.devices > MOST_PROCESSES:
        found = f"{priced.devices} ranks"
        allowed = f"at most {MOST_PROCESSES} processes on one machine"
        problems.append(Problem("plan", "", found, allowed, hint))
    needed = sum(
        stage.mesh.size * sum(lines.get(line, 0) for line in COUNTED_LINES)
        for stage, lines in zip(priced.plan.stages, priced.timeline.peak_memory, strict=True)
    )
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > here:
        found = f"{format_bytes(needed)} over {priced.devices} ranks"
        allowed = f"at most {format_bytes(here)}, the memory of this machine"
        problems.append(Problem("plan", "", found, allowed, hint))
    if problems:
        raise InputError(problems)


def _execute(
    priced: Priced, request: RunRequest, transport: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Run all ranks here: the report, and notes."""
    from autoplan.runtime.execute import execute
    from autoplan.runtime.pool import Pool

    if request.keeps:
        # Before the fork, so that not every worker loads it anew.
        import autoplan.runtime.checkpoint  # noqa: F401

    with Pool() as pool:
        if transport == "gloo":
            # Forked first: what torch computes here may start threads that a fork would lack.
            pool.grow(priced.devices)
        ready = prepare(priced, request)
        workers = pool if transport == "gloo" else None
        result = execute(ready.program, priced.graph, ready.settings, workers)
        return run_document(result, judge(result, ready), priced), ready.notes


def judge(result: RunResult, prepared: Prepared) -> Verdict | None:
    """Compare a recorded run with the reference; None if it was not recorded."""
    from autoplan.runtime.execute import whole_records
    from autoplan.runtime.verify import verify

    if not prepared.settings.record:
        return None
    records, unequal = whole_records(result)
    return verify(prepared.trial, records, unequal)


def run_document(
    result: RunResult, verdict: Verdict | None, priced: Priced | None = None
) -> dict[str, Any]:
    """The report of a run.

    Args:
        result: what all ranks did.
        verdict: of the verification, or None without one.
        priced: what was run, if that is known.
    """
    # The first step warms caches and allocators.
    seconds = result.step_seconds
    usual = median(seconds[1:] or seconds)
    spans = result.spans(len(seconds) - 1)
    began = min(span.start for span in spans)
    program = result.program
    tokens = program.batch * program.micro_batches * program.seq_len
    tokens = priced.plan.workload.tokens if priced else tokens
    return {
        "verified": verdict.verified if verdict else None,
        "max_gradient_error": verdict.max_gradient_error if verdict else None,
        "max_loss_error": verdict.max_loss_error if verdict else None,
        "max_parameter_error": verdict.max_parameter_error if verdict else None,
        "limit": verdict.limit if verdict else None,
        "replicas_equal": verdict.replicas_equal if verdict else None,
        "failures": [str(difference) for difference in verdict.failures] if verdict else [],
        "first_step": result.first_step,
        "loss": list(result.losses),
        "measured": {
            "step_time_s": usual,
            "step_times_s": list(seconds),
            "tokens_per_s": tokens / usual,
            "peak_memory_bytes": max(result.peaks.values()),
            "ranks": len(program.ranks),
        },
        "counted_peak_bytes": {
            "measured": max(result.peaks.values()),
            "predicted": _counted_peak(priced.timeline) if priced else None,
        },
        "predicted": dict(priced.predicted) if priced else None,
        "timeline": [
            {**span._asdict(), "start": span.start - began, "end": span.end - began}
            for span in spans
        ],
    }


def _counted_peak(timeline: Timeline) -> int:
    """The largest predicted memory of a stage, of the lines that a run counts as well."""
    return max(sum(s.get(line, 0) for line in COUNTED_LINES) for s in timeline.peak_memory)
