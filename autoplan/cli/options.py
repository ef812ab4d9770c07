"""Options: each declared once, grouped into the frozen types that commands take.

Numbers stay text here: whoever understands them judges all of a question at once, and says of every
bad one what would have been allowed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from autoplan import __version__

Given = TypeVar("Given")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autoplan {__version__}")
        raise typer.Exit


VersionFlag = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and exit"
    ),
]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="No screen, notes or progress: files and exit code")
]


DownloadFlag = Annotated[
    bool,
    typer.Option("--download", help="Fetch a model of the Hugging Face hub that is not cached"),
]


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command takes."""

    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout")] = False
    quiet: QuietFlag = False
    version: VersionFlag = False


@dataclass(frozen=True, kw_only=True)
class Asking(Common):
    """What a command takes that is about a model on a machine."""

    pin: Annotated[
        list[str] | None, typer.Option("--pin", metavar="K=V,...", help="Fix parts of the plan")
    ] = None
    stack: Annotated[
        str | None, typer.Option("--stack", metavar="NAME", help="Training software [autoplan]")
    ] = None
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="Override a number: levels.node.bandwidth=25GB/s"
        ),
    ] = None
    global_batch_size: Annotated[
        str | None,
        typer.Option(
            "--global-batch-size", "--global-batch", "--gbs", metavar="N",
            help="Sequences per step",
        ),
    ] = None  # fmt: skip
    seq_len: Annotated[
        str | None,
        typer.Option("--seq-len", "--seq-length", metavar="N", help="Positions per sequence"),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision", metavar="NAME[,ROLE=DTYPE]",
            help="fp64, fp32, bf16_mixed, bf16_pure, fp16_mixed; to price: fp8_tensor, fp8_tile, "
            "mxfp8. Roles: compute, parameter, master, gradient, reduce, optimizer",
        ),
    ] = None  # fmt: skip
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer", metavar="NAME[,lr=...]",
            help="adamw, adafactor, muon, lion, sgd; to price: adamw_8bit",
        ),
    ] = None  # fmt: skip
    trainable: Annotated[
        str | None,
        typer.Option(
            "--trainable", metavar="full|lora:...|REGEX",
            help="Everything, adapters (lora:r=16,targets=q|v,alpha=32), or parameters so named",
        ),
    ] = None  # fmt: skip
    dropout: Annotated[
        str | None, typer.Option("--dropout", metavar="P", help="Replaces the model's own")
    ] = None
    memory_headroom: Annotated[
        str | None,
        typer.Option("--memory-headroom", metavar="BYTES|%", help="Kept free on every device"),
    ] = None
    seed: Annotated[
        str | None, typer.Option("--seed", metavar="N", help="Of initialisation and dropout")
    ] = None
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths", metavar="fixed|FILE[:padded|packed]",
            help="Of documents: a histogram such as {\"128\": 0.3, \"512\": 0.7} [fixed]",
        ),
    ] = None  # fmt: skip
    download: DownloadFlag = False


Subject = Annotated[
    str, typer.Argument(metavar="PLAN|MODEL", help="A plan file, or a model and then a machine")
]
Machine = Annotated[
    str | None, typer.Argument(metavar="HARDWARE", help="rtx4090, rtx4090:64, a100-80g:16x8")
]
Report = Annotated[
    str | None, typer.Option("--report", metavar="FILE", help="Write an HTML page with a timeline")
]
Output = Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Write here")]


def command(
    app: typer.Typer, name: str, given: type[Given], kind: type[TyperCommand] | None = None
) -> Callable[[Callable[[Given], None]], Callable[[Given], None]]:
    """Enter a function of one options type into the app; each field becomes an option.

    Args:
        app: the command line.
        name: of the command.
        given: a dataclass whose fields are annotated for typer.
        kind: what parses its words and prints its help, where that is not the usual.
    """

    def enter(run: Callable[[Given], None]) -> Callable[[Given], None]:
        def entry(**values: object) -> None:
            run(given(**values))

        hints = get_type_hints(given, include_extras=True)
        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(given)  # type: ignore[arg-type]
        ]
        entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        entry.__annotations__ = dict(hints)
        entry.__doc__ = run.__doc__
        app.command(name, cls=kind)(entry)
        return run

    return enter
