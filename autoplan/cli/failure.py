"""How a command that failed says so.

The message goes to stderr and the exit code to the shell; with `--json` an `error` object goes to
stdout.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from dataclasses import asdict
from typing import Any

from autoplan.errors import EXIT_BUG, AutoplanError, InfeasibleError, InputError


def report_failure(error: AutoplanError) -> None:
    """Print what is wrong on stderr."""
    sys.stderr.write(f"error: {error}\n")


def error_document(error: AutoplanError) -> dict[str, Any]:
    """The `error` object."""
    document: dict[str, Any] = {
        "kind": type(error).__name__,
        "exit_code": error.exit_code,
        "message": str(error),
    }
    if isinstance(error, InputError):
        document["problems"] = [asdict(problem) for problem in error.problems]
    if isinstance(error, InfeasibleError):
        document |= {"refused": error.refused, "nearest": list(error.nearest)}
    return document


class Bug(AutoplanError):
    """An error that nobody meant to happen."""

    exit_code = EXIT_BUG

    @classmethod
    def of(cls, error: BaseException) -> Bug:
        """Describe an unexpected error; its traceback goes to a file, which the message names."""
        with tempfile.NamedTemporaryFile(
            "w", prefix="autoplan-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            traceback.print_exception(error, file=log)
        return cls(
            f"this is a bug in autoplan ({type(error).__name__}: {error}); "
            f"please report it with {log.name} and the command"
        )
