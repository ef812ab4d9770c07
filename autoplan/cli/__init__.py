"""The command line (floor 9): one file a command: parse, call one verb, render, exit code.

    options   every option, declared once          asking    options -> the question of a verb
    output    stdout for data, stderr for the rest  failure   errors as text, JSON and exit codes
    search simulate explain compare lower run show profile validate calibrate  the commands

Exit codes: 0 done, 2 bad input, 3 nothing fits, 4 a program check failed, 5 numbers differ from the
reference, 6 a worker died or hung, 70 a bug, 130 interrupted. `--help` must be instant, so nothing
heavy is imported before a command runs: verbs and tables are imported inside the functions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from autoplan.cli.calibrate import CalibrateOptions, calibrate
from autoplan.cli.compare import CompareOptions, compare
from autoplan.cli.explain import ExplainOptions, explain
from autoplan.cli.failure import Bug, error_document, report_failure
from autoplan.cli.lower import LowerOptions, lower
from autoplan.cli.options import QuietFlag, VersionFlag, command
from autoplan.cli.profile import ProfileOptions, profile
from autoplan.cli.run import RunOptions, run
from autoplan.cli.search import SearchOptions, search
from autoplan.cli.show import ShowOptions, show
from autoplan.cli.simulate import SimulateOptions, simulate
from autoplan.cli.validate import ValidateCommand, ValidateOptions, validate
from autoplan.errors import AutoplanError, InputError, Problem

__all__ = ["app", "main"]

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""128 + the signal, as shells count. Source: bash manual, section "Exit Status"."""

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What the parser raises on a malformed command line; typer exports only its subclass."""

app = typer.Typer(
    name="autoplan",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _everywhere(
    context: typer.Context, quiet: QuietFlag = False, version: VersionFlag = False
) -> None:
    """Plan, price, run and verify the training of large models."""
    if quiet:
        context.default_map = {name: {"quiet": True} for name in COMMANDS}


COMMANDS = (
    "search",
    "simulate",
    "explain",
    "compare",
    "lower",
    "run",
    "show",
    "profile",
    "validate",
    "calibrate",
)
command(app, "search", SearchOptions)(search)
command(app, "simulate", SimulateOptions)(simulate)
command(app, "explain", ExplainOptions)(explain)
command(app, "compare", CompareOptions)(compare)
command(app, "lower", LowerOptions)(lower)
command(app, "run", RunOptions)(run)
command(app, "show", ShowOptions)(show)
command(app, "profile", ProfileOptions)(profile)
command(app, "validate", ValidateOptions, ValidateCommand)(validate)
command(app, "calibrate", CalibrateOptions)(calibrate)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: its words without the program's name; None for this process's own.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        code = typer.main.get_command(app).main(words, prog_name="autoplan", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has left; the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except AutoplanError as error:
        return _fail(error, words)
    except UsageError as error:
        return _fail(_as_input_error(error, words), words)
    except Exception as error:  # the last resort: a bug must not look like a result
        return _fail(Bug.of(error), words)
    return code if isinstance(code, int) else 0


def _fail(error: AutoplanError, words: Sequence[str]) -> int:
    report_failure(error)
    if "--json" in words:
        from autoplan.cli.output import print_json

        print_json({"error": error_document(error)})
    return error.exit_code


def _as_input_error(error: Exception, words: Sequence[str]) -> InputError:
    """A malformed command line as a problem like any other."""
    named = [word for word in words if word in COMMANDS]
    usage = " ".join(["autoplan", *named[:1], "--help"])
    message = getattr(error, "format_message", error.__str__)()
    found = message[:1].lower() + message[1:].rstrip(".")
    return InputError(Problem("command line", "", found, f"what `{usage}` lists"))
