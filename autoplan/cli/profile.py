"""`autoplan profile`: measure this machine, or read a cluster's topology and logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from autoplan.cli.asking import Numbers
from autoplan.cli.options import Common, Output
from autoplan.cli.output import Progress, print_json, print_notes, screen

Text = str | None
BAR = 24
"""Columns of the progress bar."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(Common):
    """What `profile` takes."""

    ranks: Annotated[
        Text, typer.Option("--ranks", metavar="N", help="Processes at once [one a device or core]")
    ] = None
    topology: Annotated[
        Text,
        typer.Option(
            "--topology", metavar="FILE", help="What `nvidia-smi topo -m` printed on a node"
        ),
    ] = None
    nccl_log: Annotated[
        list[str] | None,
        typer.Option("--nccl-log", metavar="FILE", help="What a test of nccl-tests printed"),
    ] = None
    extends: Annotated[
        Text,
        typer.Option(
            "--extends", metavar="NAME", help="Profile of the devices, for what is not measured"
        ),
    ] = None
    output: Output = None


def profile(given: ProfileOptions) -> None:
    """Write the profile of this machine, measured, or of a cluster described by files."""
    from autoplan.errors import InputError
    from autoplan.files.text import write_json
    from autoplan.report import print_profile

    numbers = Numbers()
    ranks = numbers.whole("--ranks", given.ranks) if given.ranks is not None else None
    if numbers.problems:
        raise InputError(numbers.problems)
    document = _document(given, ranks)
    if given.output:
        write_json(given.output, document["hardware"])
    if given.json:
        print_json(document)
    elif not given.quiet:
        print_profile(screen(), document)
    print_notes(document["notes"], "note", given.quiet)
    if given.output:
        notes = [f"wrote {given.output}", f"next: autoplan search MODEL {given.output}"]
        print_notes(notes, "note", given.quiet)


def _document(given: ProfileOptions, ranks: int | None) -> dict[str, Any]:
    """The profile and what it rests on."""
    from autoplan.errors import InputError, Problem
    from autoplan.validate.measure import (
        cluster_document,
        measure_machine,
        measured_document,
        profile_cluster,
    )

    name, extends = Path(given.output).stem if given.output else "", given.extends or ""
    if given.topology or given.nccl_log:
        if ranks is not None:
            found = f"{ranks}, with files about another machine"
            raise InputError(Problem("--ranks", "", found, "nothing with --topology or --nccl-log"))
        logs = given.nccl_log or []
        return cluster_document(profile_cluster(name or "cluster", extends, given.topology, logs))
    progress = Progress(given.quiet)
    write = progress.callback
    try:
        tell = None if write is None else lambda what, done: write(_bar(what, done))
        return measured_document(measure_machine(name or "here", ranks, extends, progress=tell))
    finally:
        progress.clear()


def _bar(what: str, done: float) -> str:
    full = round(BAR * done)
    return f"[{'#' * full}{'.' * (BAR - full)}] {what}"
