"""`autoplan run PLAN`, or MODEL HARDWARE --pin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from autoplan.cli.asking import Numbers, question
from autoplan.cli.options import Asking, Machine, Subject
from autoplan.cli.output import print_json, print_line, print_notes, screen

if TYPE_CHECKING:
    from autoplan.workflow import RunReport, RunRequest, Torchrun

TORCHRUN = "Ranks started by torchrun, with its own flags"

Text = str | None


@dataclass(frozen=True, kw_only=True)
class RunOptions(Asking):
    """What `run` takes. `--precision` is that of the run; the plan's own comes with the plan."""

    subject: Subject
    hardware: Machine = None
    steps: Annotated[
        str, typer.Option("--steps", metavar="N", help="Training steps, from here on")
    ] = "1"
    data: Annotated[
        Text, typer.Option("--data", metavar="FILE", help="Any file, read as bytes")
    ] = None
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare with the unsharded run")
    ] = True
    save: Annotated[
        Text, typer.Option("--save", metavar="DIR", help="Leave the state after the last step")
    ] = None
    resume: Annotated[
        Text, typer.Option("--resume", metavar="DIR", help="Begin from what --save has left")
    ] = None
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Run a small plan of the same structure here")
    ] = False
    precision: Annotated[
        Text,
        typer.Option("--precision", metavar="NAME", help="Of the run: fp64, fp32, ... or plan"),
    ] = None
    transport: Annotated[
        Text,
        typer.Option("--transport", metavar="NAME", help="gloo, or lockstep in one process"),
    ] = None
    device: Annotated[
        Text,
        typer.Option("--device", metavar="NAME", help="cpu, cuda or npu, with torchrun's flags"),
    ] = None
    nnodes: Annotated[Text, typer.Option("--nnodes", metavar="N", help=TORCHRUN)] = None
    nproc_per_node: Annotated[
        Text, typer.Option("--nproc-per-node", metavar="N", help=TORCHRUN)
    ] = None
    node_rank: Annotated[Text, typer.Option("--node-rank", metavar="N", help=TORCHRUN)] = None
    rdzv_endpoint: Annotated[
        Text, typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help=TORCHRUN)
    ] = None
    rdzv_id: Annotated[Text, typer.Option("--rdzv-id", metavar="ID", help=TORCHRUN)] = None
    master_addr: Annotated[Text, typer.Option("--master-addr", metavar="HOST", help=TORCHRUN)] = (
        None
    )


def run(given: RunOptions) -> None:
    """Execute a plan, verify it and measure it."""
    from autoplan.cli.failure import error_document, report_failure
    from autoplan.errors import MismatchError
    from autoplan.workflow import plan_run

    numbers = Numbers()
    request = _request(given, numbers)
    # --precision is the run's: the plan that pins describe takes the usual one.
    planning = replace(given, precision=None)
    asked = question(planning, given.subject, given.hardware, numbers.problems)
    report = plan_run(asked, request)
    print_notes(report.warnings, "warning", given.quiet)
    print_notes(report.notes, "note", given.quiet)
    document = report.document
    if document is None:
        print_notes(["process 0 ran elsewhere and has the report"], "note", given.quiet)
        return
    lines = ["the run differs from the reference:", *document["failures"]]
    error = MismatchError("\n  ".join(lines)) if document["verified"] is False else None
    if given.json:
        print_json({**document, **({"error": error_document(error)} if error else {})})
    elif not given.quiet:
        _print(report)
    if error:
        report_failure(error)
        raise typer.Exit(error.exit_code)


def _request(given: RunOptions, numbers: Numbers) -> RunRequest:
    """How to run, as typed."""
    from autoplan.workflow import RunRequest

    return RunRequest(
        steps=numbers.whole("--steps", given.steps),
        data=given.data or "",
        verify=given.verify,
        rehearse=given.rehearse,
        precision=given.precision or "fp64",
        transport=given.transport or "",
        torchrun=_torchrun(given, numbers),
        save=given.save or "",
        resume=given.resume or "",
    )


def _torchrun(given: RunOptions, numbers: Numbers) -> Torchrun | None:
    """What torchrun is to be told, or None where nobody gave one."""
    from autoplan.workflow import Torchrun

    counts = (given.nnodes, given.nproc_per_node)
    texts = (given.node_rank, given.rdzv_endpoint, given.rdzv_id, given.master_addr, given.device)
    if all(text is None for text in (*counts, *texts)):
        return None
    return Torchrun(
        nnodes=numbers.whole("--nnodes", given.nnodes or "1"),
        nproc_per_node=numbers.whole("--nproc-per-node", given.nproc_per_node or "1"),
        node_rank=given.node_rank or "",
        rdzv_endpoint=given.rdzv_endpoint or "",
        rdzv_id=given.rdzv_id or "",
        master_addr=given.master_addr or "",
        device=given.device or "cpu",
    )


def _print(report: RunReport) -> None:
    from autoplan.report import headline, print_run

    assert report.document is not None, "whoever has no report prints none"
    console = screen()
    print_line(console, headline(report.priced.plan, report.assumed))
    print_run(console, report.document)
