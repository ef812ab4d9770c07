"""`autoplan lower PLAN -o program.json`."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.cli.asking import question
from autoplan.cli.options import Asking, Machine, Output, Subject
from autoplan.cli.output import print_json, print_line, print_notes, screen


@dataclass(frozen=True, kw_only=True)
class LowerOptions(Asking):
    """What `lower` takes."""

    subject: Subject
    hardware: Machine = None
    output: Output = None


def lower(given: LowerOptions) -> None:
    """Write what every rank of a plan executes."""
    from autoplan.files.program import dump_program
    from autoplan.files.text import write_json
    from autoplan.report import headline
    from autoplan.workflow import plan_lower

    done = plan_lower(question(given, given.subject, given.hardware))
    print_notes(done.target.warnings, "warning", given.quiet)
    document = dump_program(done.program)
    if given.output:
        write_json(given.output, document)
    if given.json or not given.output:
        print_json(document)
    elif not given.quiet:
        console = screen()
        print_line(console, headline(done.target.priced.plan, done.target.assumed))
        for stage in done.program.stages:
            instructions = sum(len(segment.code) for segment in stage.segments.values())
            console.print(
                f"stage {stage.stage}: {stage.mesh.size} devices, {len(stage.segments)} segments "
                f"of {instructions} instructions, {len(stage.actions)} actions"
            )
    if given.output:
        print_notes([f"wrote {given.output}"], "note", given.quiet)
