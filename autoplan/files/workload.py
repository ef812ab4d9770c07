"""Workload JSON <-> `ir.workload.Workload`.

`precision` is the name of a bundle, or an object whose absent dtypes come from the bundle it names:
`{"name": "bf16_mixed", "gradient": "bf16"}`.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from autoplan.errors import nearest
from autoplan.files.problems import Problems, Strict, one_of, validate
from autoplan.ir.workload import OPTIMIZER_STATES, PRECISIONS, Optimizer, Precision, Workload

LARGEST = 1 << 40

Dtype = Literal["fp64", "fp32", "bf16", "fp16", "fp8"]
_ROLES = ("compute", "parameter", "master", "gradient", "reduce", "optimizer")


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


class OptimizerFile(Strict):
    """`optimizer`."""

    name: Annotated[str, one_of(OPTIMIZER_STATES)] = "adamw"
    hyper: HyperFile = HyperFile()
    clip: float = Field(default=1.0, ge=0, le=1e12)


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

    @field_validator("trainable")
    @classmethod
    def _pattern(cls, text: str) -> str:
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
    hyper = {k: float(v) for k, v in file.optimizer.hyper.model_dump().items() if v is not None}
    return Workload(
        kind=file.kind,
        global_batch_size=file.global_batch_size,
        seq_len=file.seq_len,
        precision=_precision(file.precision, source, f"{path}.precision"),
        optimizer=Optimizer(file.optimizer.name, hyper, float(file.optimizer.clip)),
        trainable=file.trainable,
        dropout=None if file.dropout is None else float(file.dropout),
        memory_headroom=file.memory_headroom_bytes,
        seed=file.seed,
    )


def parse_precision(document: object, source: str, path: str = "$") -> Precision:
    """The dtype bundle that a name or an object means; see the module."""
    return _precision(validate(PrecisionFile, _named(document), source, path), source, path)


def _precision(file: PrecisionFile, source: str, path: str) -> Precision:
    bundle = PRECISIONS.get(file.name)
    problems = Problems(source)
    chosen: dict[str, str] = {}
    for role in _ROLES:
        dtype = getattr(file, role) or (getattr(bundle, role) if bundle else None)
        if dtype is not None:
            chosen[role] = dtype
    if len(chosen) < len(_ROLES):
        allowed = f"one of {', '.join(PRECISIONS)}, or all of {', '.join(_ROLES)}"
        problems.add(f"{path}.name", file.name, allowed, nearest(file.name, PRECISIONS))
    problems.check()
    return Precision(file.name, **chosen)


def dump_workload(workload: Workload) -> dict[str, Any]:
    """The document of a workload; `parse_workload` gives it back, equal."""
    precision = workload.precision
    bundled = PRECISIONS.get(precision.name) == precision
    optimizer = workload.optimizer
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
    }
