"""Workload JSON <-> `ir.workload.Workload`.

`precision` is the name of a bundle, or an object whose absent dtypes come from the bundle it names:
`{"name": "bf16_mixed", "gradient": "bf16"}`. On the command line both it and the optimizer are a
name and what differs: `bf16_mixed,gradient=bf16` or `adamw,lr=1e-4,clip=0.5`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from autoplan.errors import Problem, nearest
from autoplan.files.lengths import LengthsFile, dump_lengths
from autoplan.files.problems import Problems, Strict, one_of, validate
from autoplan.ir.adapter import is_lora, parse_lora
from autoplan.ir.optimizer import OPTIMIZERS
from autoplan.ir.workload import (
    DTYPE_ROLES,
    PRECISIONS,
    LossScale,
    Optimizer,
    Precision,
    Workload,
)

LARGEST = 1 << 40
CLIP = 1.0
"""Limit of the gradient norm where nobody gives one."""

Dtype = Literal["fp64", "fp32", "bf16", "fp16", "fp8"]


class PrecisionFile(Strict):
    """`precision`: a bundle and the dtypes that differ from it."""

    name: str = Field(min_length=1)
    compute: Dtype | None = None
    parameter: Dtype | None = None
    master: Dtype | None = None
    gradient: Dtype | None = None
    reduce: Dtype | None = None
    optimizer: Dtype | None = None


class HyperFile(Strict):
    """Hyper-parameters; an absent one takes the optimizer operator's default."""

    lr: float | None = Field(default=None, ge=0, le=1e6)
    beta1: float | None = Field(default=None, ge=0, lt=1)
    beta2: float | None = Field(default=None, ge=0, lt=1)
    eps: float | None = Field(default=None, gt=0, le=1)
    weight_decay: float | None = Field(default=None, ge=0, le=1e6)
    momentum: float | None = Field(default=None, ge=0, lt=1)
    decay: float | None = Field(default=None, ge=0, le=1)
    threshold: float | None = Field(default=None, gt=0, le=1e6)


class OptimizerFile(Strict):
    """`optimizer`."""

    name: Annotated[str, one_of(OPTIMIZERS)] = "adamw"
    hyper: HyperFile = HyperFile()
    clip: float = Field(default=CLIP, ge=0, le=1e12)


class LossScaleFile(Strict):
    """`loss_scale`, which only fp16 has."""

    initial: float = Field(default=LossScale().initial, gt=0, le=2.0**64)
    growth_interval: int = Field(default=LossScale().growth_interval, ge=1, le=LARGEST)


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class WorkloadFile(Strict):
    """A whole workload."""

    kind: Literal["train"] = "train"
    global_batch_size: int = Field(ge=1, le=LARGEST)
    seq_len: int = Field(ge=1, le=LARGEST)
    precision: Annotated[PrecisionFile, BeforeValidator(_named)]
    optimizer: OptimizerFile = OptimizerFile()
    trainable: str = Field(default="full", min_length=1)
    dropout: float | None = Field(default=None, ge=0, lt=1)
    memory_headroom_bytes: int = Field(default=0, ge=0, le=1 << 60)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    loss_scale: LossScaleFile = LossScaleFile()
    lengths: LengthsFile | None = None

    @field_validator("trainable")
    @classmethod
    def _pattern(cls, text: str) -> str:
        if is_lora(text):  # judged later, where all its problems can be told
            return text
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"`full` or a regular expression ({error})") from None
        return text


def parse_workload(document: object, source: str, path: str = "$") -> Workload:
    """The workload that a document describes.

    Args:
        document: parsed JSON.
        source: file or flag, for messages.
        path: path of the document inside the source.

    Raises:
        InputError: every problem at once.
    """
    file = validate(WorkloadFile, document, source, path)
    problems = Problems(source)
    optimizer = _optimizer(file.optimizer, problems, f"{path}.optimizer")
    precision = problems.attempt(lambda: _precision(file.precision, source, f"{path}.precision"))
    problems.attempt(lambda: parse_lora(file.trainable, source, f"{path}.trainable"))
    lengths = file.lengths.noun() if file.lengths else None
    if lengths and lengths.histogram[-1][0] > file.seq_len:
        allowed = f"lengths of at most the {file.seq_len} positions of a sequence"
        problems.add(f"{path}.lengths.histogram", lengths.histogram[-1][0], allowed)
    problems.check()
    assert precision is not None
    return Workload(
        kind=file.kind,
        global_batch_size=file.global_batch_size,
        seq_len=file.seq_len,
        precision=precision,
        optimizer=optimizer,
        trainable=file.trainable,
        dropout=None if file.dropout is None else float(file.dropout),
        memory_headroom=file.memory_headroom_bytes,
        seed=file.seed,
        loss_scale=LossScale(float(file.loss_scale.initial), file.loss_scale.growth_interval),
        lengths=lengths,
    )


def _optimizer(file: OptimizerFile, problems: Problems, path: str) -> Optimizer:
    """The optimizer; a hyper-parameter that it does not have is a problem."""
    known = OPTIMIZERS[file.name].hyper
    given = {k: float(v) for k, v in file.hyper.model_dump().items() if v is not None}
    for name in sorted(given.keys() - known.keys()):
        allowed = f"for {file.name} one of {', '.join(sorted(known))}"
        problems.add(f"{path}.hyper.{name}", given[name], allowed, nearest(name, known))
    return Optimizer(file.name, given, float(file.clip))


def precision_document(text: str, found: list[Problem]) -> dict[str, Any]:
    """The `precision` that `bf16_mixed,gradient=bf16` means; what is malformed goes to `found`."""
    name, changes = _setting(text, "--precision", "bf16_mixed,gradient=bf16", found)
    return {**changes, "name": name}


def optimizer_document(text: str, found: list[Problem]) -> dict[str, Any]:
    """The `optimizer` that `adamw,lr=1e-4,clip=0.5` means, with the defaults of its declaration."""
    name, changes = _setting(text, "--optimizer", "adamw,lr=1e-4,clip=0.5", found)
    values: dict[str, Any] = dict(changes)
    for key, value in changes.items():
        with suppress(ValueError):
            values[key] = float(value)
    clip = values.pop("clip", CLIP)
    defaults = OPTIMIZERS[name].hyper if name in OPTIMIZERS else {}
    return {"name": name, "hyper": {**defaults, **values}, "clip": clip}


def _setting(
    text: str, source: str, example: str, found: list[Problem]
) -> tuple[str, dict[str, str]]:
    """`name,key=value,...` as its name and the rest."""
    name, *parts = (part.strip() for part in text.split(","))
    table: dict[str, str] = {}
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value) or key in table or key == "name":
            found.append(Problem(source, "", f"`{part}`", f"each key once, as in {example}"))
        else:
            table[key] = value
    return name, table


def parse_precision(document: object, source: str, path: str = "$") -> Precision:
    """The dtype bundle that a name or an object means; see the module."""
    return _precision(validate(PrecisionFile, _named(document), source, path), source, path)


def _precision(file: PrecisionFile, source: str, path: str) -> Precision:
    bundle = PRECISIONS.get(file.name)
    problems = Problems(source)
    chosen: dict[str, str] = {}
    for role in DTYPE_ROLES:
        dtype = getattr(file, role) or (getattr(bundle, role) if bundle else None)
        if dtype is not None:
            chosen[role] = dtype
    if len(chosen) < len(DTYPE_ROLES):
        allowed = f"one of {', '.join(PRECISIONS)}, or all of {', '.join(DTYPE_ROLES)}"
        problems.add(f"{path}.name", file.name, allowed, nearest(file.name, PRECISIONS))
    problems.check()
    return Precision(file.name, **chosen)


def dump_workload(workload: Workload) -> dict[str, Any]:
    """The document of a workload; `parse_workload` gives it back, equal."""
    precision = workload.precision
    bundled = PRECISIONS.get(precision.name) == precision
    optimizer = workload.optimizer
    scale = {"loss_scale": asdict(workload.loss_scale)}
    shown = precision.scales_loss or workload.loss_scale != LossScale()
    return {
        "kind": workload.kind,
        "global_batch_size": workload.global_batch_size,
        "seq_len": workload.seq_len,
        "precision": precision.name if bundled else asdict(precision),
        "optimizer": {
            "name": optimizer.name,
            "hyper": dict(sorted(optimizer.hyper.items())),
            "clip": optimizer.clip,
        },
        "trainable": workload.trainable,
        "dropout": workload.dropout,
        "memory_headroom_bytes": workload.memory_headroom,
        "seed": workload.seed,
        **(scale if shown else {}),
        **({"lengths": dump_lengths(workload.lengths)} if workload.lengths else {}),
    }
