"""Program JSON (`schema_version` 1) <-> `ir.program.Program`.

Actions, registers and slots stand as one-line texts, so that a program reads like an assembly
listing:

    action      "F layer/F i3 m0"    "SEND (x) i3 m0 @1"     i instance, m micro-batch, @ peer stage
    register    "q[2 128 4 16] bf16 activations"
    slot        "layers.3.wq"    "x i4 m0"

What a Program must keep is for the checks of lowering; here only that every name and register that
is used exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from autoplan.files.layouts import LayoutText, MeshFile, build_mesh, dump_mesh, mesh_devices
from autoplan.files.problems import Problems, Strict, validate
from autoplan.files.program_text import (
    ActionText,
    RegisterText,
    SlotText,
    format_action,
    format_register,
    format_slot,
)
from autoplan.files.workload import LARGEST
from autoplan.ir.graph import Attrs
from autoplan.ir.layout import format_layout
from autoplan.ir.program import Formal, Instr, Program, Segment, SlotSpec, StageProgram

SCHEMA_VERSION = 1

Number = Annotated[int, Field(ge=0, le=LARGEST)]


def _frozen(value: object) -> Any:
    """An attribute's JSON value with tuples for lists."""
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        allowed = "a number, a text, true, false, null or a list of them"
        raise PydanticCustomError("attribute", allowed)
    return value


class InstrFile(Strict):
    """One of a segment's `code`."""

    op: str = Field(min_length=1)
    ins: list[Number] = []
    outs: list[Number] = []
    attrs: dict[str, Annotated[Any, BeforeValidator(_frozen)]] = {}
    alias: list[Annotated[int, Field(ge=-1, le=LARGEST)]] = []
    frees: list[Number] = []


class FormalFile(Strict):
    """One of a segment's `formals`."""

    number: Number = Field(alias="register")
    intent: Literal["in", "move", "out", "acc"]
    name: str = Field(min_length=1)
    layer: int | None = Field(default=None, ge=-LARGEST, le=LARGEST)
    per_micro_batch: bool
    returns: int = Field(default=-1, ge=-1, le=LARGEST)


class SegmentFile(Strict):
    """One of a stage's `segments`."""

    formals: list[FormalFile]
    registers: list[RegisterText]
    code: list[InstrFile]


class SlotSpecFile(Strict):
    """A slot that exists before the first action, or that FEED or RECV creates."""

    slot: SlotText
    type: RegisterText = Field(alias="register")
    layout: LayoutText
    dims: list[str]
    source: list[str]


class StageProgramFile(Strict):
    """One of `stages`."""

    mesh: MeshFile
    segments: dict[str, SegmentFile]
    actions: list[ActionText]
    resident: list[SlotSpecFile]
    feeds: dict[str, SlotSpecFile]
    channels: dict[str, SlotSpecFile]
    gradients: dict[str, SlotSpecFile]


class ProgramDocument(Strict):
    """A whole program."""

    schema_version: Literal[1]
    micro_batches: int = Field(ge=1, le=LARGEST)
    batch: int = Field(ge=1, le=LARGEST)
    seq_len: int = Field(ge=1, le=LARGEST)
    extent: dict[str, Annotated[int, Field(ge=1, le=LARGEST)]]
    groups: dict[str, list[list[Number]]]
    stages: list[StageProgramFile] = Field(min_length=1)


def dump_program(program: Program) -> dict[str, Any]:
    """The document of a program; `parse_program` gives an equal text back."""
    return {
        "schema_version": SCHEMA_VERSION,
        "micro_batches": program.micro_batches,
        "batch": program.batch,
        "seq_len": program.seq_len,
        "extent": dict(sorted(program.extent.items())),
        "groups": {
            name: [list(ranks) for ranks in groups]
            for name, groups in sorted(program.groups.items())
        },
        "stages": [_stage(stage) for stage in program.stages],
    }


def _stage(stage: StageProgram) -> dict[str, Any]:
    return {
        "mesh": dump_mesh(stage.mesh),
        "segments": {key: _segment(segment) for key, segment in stage.segments.items()},
        "actions": [format_action(action) for action in stage.actions],
        "resident": [_spec(spec) for spec in stage.resident],
        "feeds": {name: _spec(spec) for name, spec in stage.feeds.items()},
        "channels": {name: _spec(spec) for name, spec in stage.channels.items()},
        "gradients": {name: _spec(spec) for name, spec in stage.gradients.items()},
    }


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "formals": [formal._asdict() for formal in segment.formals],
        "registers": [format_register(register) for register in segment.registers],
        "code": [_instruction(instruction) for instruction in segment.code],
    }


def _instruction(instruction: Instr) -> dict[str, Any]:
    document: dict[str, Any] = {"op": instruction.op}
    for name in ("ins", "outs", "attrs", "alias", "frees"):
        value = getattr(instruction, name)
        if value:
            document[name] = dict(value) if name == "attrs" else list(value)
    return document


def _spec(spec: SlotSpec) -> dict[str, Any]:
    return {
        "slot": format_slot(spec.slot),
        "register": format_register(spec.register),
        "layout": format_layout(spec.layout),
        "dims": list(spec.dims),
        "source": list(spec.source),
    }


def parse_program(document: object, source: str) -> Program:
    """The program that a document describes.

    Args:
        document: parsed JSON.
        source: the file, for messages.

    Raises:
        InputError: every problem at once.
    """
    file = validate(ProgramDocument, document, source)
    problems = Problems(source)
    for index, stage in enumerate(file.stages):
        _check_stage(stage, f"$.stages[{index}]", len(file.stages), problems)
    problems.check()
    return Program(
        stages=tuple(_build_stage(i, stage) for i, stage in enumerate(file.stages)),
        micro_batches=file.micro_batches,
        batch=file.batch,
        seq_len=file.seq_len,
        groups={name: tuple(map(tuple, groups)) for name, groups in file.groups.items()},
        extent=file.extent,
    )


def _check_stage(stage: StageProgramFile, path: str, stages: int, problems: Problems) -> None:
    """Every segment, register, peer and placement that is named exists."""
    if mesh_devices(build_mesh(stage.mesh)) is None:
        problems.add(f"{path}.mesh", str(build_mesh(stage.mesh)), "axes of distinct devices")
    for index, action in enumerate(stage.actions):
        where = f"{path}.actions[{index}]"
        if action.segment and action.segment not in stage.segments:
            allowed = f"a segment of this stage: {', '.join(stage.segments)}"
            problems.add(where, action.segment, allowed)
        if action.peer >= stages:
            problems.add(where, action.peer, f"a stage below {stages}")
    for key, segment in stage.segments.items():
        _check_segment(segment, f"{path}.segments.{key}", problems)
    axes = len(stage.mesh.axes)
    named = [(f"resident[{i}]", spec) for i, spec in enumerate(stage.resident)]
    for table in ("feeds", "channels", "gradients"):
        named += [(f"{table}.{name}", spec) for name, spec in getattr(stage, table).items()]
    for where, spec in named:
        if len(spec.layout) != axes:
            found = format_layout(spec.layout)
            problems.add(f"{path}.{where}.layout", found, f"{axes} placements, one per mesh axis")


def _check_segment(segment: SegmentFile, path: str, problems: Problems) -> None:
    count = len(segment.registers)
    for index, formal in enumerate(segment.formals):
        for number in (formal.number, formal.returns):
            if number >= count:
                problems.add(f"{path}.formals[{index}]", number, f"a register below {count}")
    for index, instruction in enumerate(segment.code):
        where = f"{path}.code[{index}]"
        used = (*instruction.ins, *instruction.outs, *instruction.alias, *instruction.frees)
        if used and max(used) >= count:
            problems.add(where, max(used), f"registers below {count}")
        if instruction.alias and len(instruction.alias) != len(instruction.outs):
            allowed = f"{len(instruction.outs)} entries, one per result, or none"
            problems.add(f"{where}.alias", instruction.alias, allowed)


def _build_stage(index: int, file: StageProgramFile) -> StageProgram:
    return StageProgram(
        stage=index,
        mesh=build_mesh(file.mesh),
        segments={key: _build_segment(key, segment) for key, segment in file.segments.items()},
        actions=tuple(file.actions),
        resident=tuple(map(_build_spec, file.resident)),
        feeds=_build_specs(file.feeds),
        channels=_build_specs(file.channels),
        gradients=_build_specs(file.gradients),
    )


def _build_specs(files: Mapping[str, SlotSpecFile]) -> dict[str, SlotSpec]:
    return {name: _build_spec(file) for name, file in files.items()}


def _build_spec(file: SlotSpecFile) -> SlotSpec:
    return SlotSpec(file.slot, file.type, file.layout, tuple(file.dims), tuple(file.source))


def _build_segment(key: str, file: SegmentFile) -> Segment:
    formals = tuple(
        Formal(f.number, f.intent, f.name, f.layer, f.per_micro_batch, f.returns)
        for f in file.formals
    )
    return Segment(key, formals, tuple(file.registers), tuple(map(_build_instruction, file.code)))


def _build_instruction(file: InstrFile) -> Instr:
    attrs: Attrs = tuple(file.attrs.items())
    return Instr(
        op=file.op,
        ins=tuple(file.ins),
        outs=tuple(file.outs),
        attrs=attrs,
        alias=tuple(file.alias),
        frees=tuple(file.frees),
    )
