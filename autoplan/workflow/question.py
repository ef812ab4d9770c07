"""What a person asks, and what it means: names and options -> graph, machine, workload, pins.

What the person left open is filled in here, and every such value is named in `Inputs.assumed`; a
value that was given is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from autoplan.errors import InputError, Problem
from autoplan.files.hf_config import load_model
from autoplan.files.lengths import FIXED, lengths_document
from autoplan.files.machine_spec import load_hardware
from autoplan.files.problems import Problems
from autoplan.files.stack import load_stack
from autoplan.files.workload import optimizer_document, parse_workload, precision_document
from autoplan.frontends import step_graph
from autoplan.ir.graph import Graph
from autoplan.ir.machine import Hardware, Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.workload import Workload
from autoplan.presets import notes
from autoplan.presets.pins import LATER, PARSERS, Pins, parse_pins
from autoplan.units import GIB, format_bytes, parse_quantity

Text = str | int | float | None
"""An option as typed, or None where it was not given."""

DEFAULT_STACK = "autoplan"
DEFAULT_SEQ_LEN = 4096
SEQUENCES_PER_DEVICE = 4
"""Of the assumed batch: enough micro-batches for a deep pipeline, and for data parallel alike."""
HEADROOM_SHARE, HEADROOM_LEAST = 0.06, GIB
SMALL_DEVICE = 8 * GIB
"""Below this capacity the least headroom would be a large part of the device."""
NUMBERS = ("global_batch_size", "seq_len", "dropout", "seed")


@dataclass(frozen=True, slots=True)
class Options:
    """The workload as typed; None is assumed. See `ir.workload.Workload` for meanings.

    Attributes:
        memory_headroom: bytes (`2GiB`) or a share of the device's memory (`6%`).
        lengths: `fixed`, or a histogram file with `:padded` or `:packed`.
    """

    global_batch_size: Text = None
    seq_len: Text = None
    precision: Text = None
    optimizer: Text = None
    trainable: Text = None
    dropout: Text = None
    memory_headroom: Text = None
    seed: Text = None
    lengths: Text = None

    @property
    def given(self) -> Mapping[str, str | int | float]:
        """Options that were typed, by name."""
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in pairs if value is not None}


@dataclass(frozen=True, slots=True)
class Question:
    """What a person typed.

    Attributes:
        subject: a model; a plan file where `machine` is empty; a program file for `simulate`.
        machine: hardware with its size (`rtx4090:64`), or "".
        overrides: `path=value` that change numbers of the machine.
        stack: a stack profile, or None for the default.
        pins: texts such as `tp=4,pp<=8`.
        options: of the workload.
        download: whether a model of the Hugging Face hub may be fetched.
        batch: the batch to assume where none is given, or None for one that fills the machine:
            answers about several machines are about one batch.
        problems: what is wrong with whatever else was typed, to be reported with the rest.
        model: the subject itself where no name leads to it, or None.
    """

    subject: str
    machine: str = ""
    overrides: tuple[str, ...] = ()
    stack: str | None = None
    pins: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    download: bool = False
    batch: int | None = None
    problems: tuple[Problem, ...] = ()
    model: DecoderConfig | None = None


@dataclass(frozen=True)
class Inputs:
    """A question, understood.

    Attributes:
        graph: the training step of `config` under `workload`.
        config, hardware, stack, workload, pins: the inputs of every verb.
        assumed: values that nobody gave, for people.
    """

    graph: Graph
    config: DecoderConfig
    hardware: Hardware
    stack: Stack
    workload: Workload
    pins: Pins
    assumed: tuple[str, ...]


def resolve(question: Question) -> Inputs:
    """Everything that a question about a model on a machine names.

    Raises:
        InputError: every problem of the model, machine, stack, pins and options at once.
    """
    problems = Problems("command line", list(question.problems))
    config = question.model or problems.attempt(
        lambda: load_model(question.subject, question.download)
    )
    hardware, stack = load_machine(question, problems)
    pins = problems.attempt(lambda: parse_pins(question.pins))
    document, assumed = _workload(question, config, (hardware, stack), pins or {}, problems)
    workload = problems.attempt(lambda: _parse(document))
    if hardware and workload:
        problems.found += _peak_problems(workload, hardware)
    problems.check()
    if not (config and hardware and stack and workload):
        raise AssertionError("without problems there are inputs")
    graph = step_graph(config, workload)
    if question.stack is None:
        assumed = [f"stack {stack.name}", *assumed]
    assumed += notes(pins or {}, stack)
    return Inputs(graph, config, hardware, stack, workload, pins or {}, tuple(assumed))


def _peak_problems(workload: Workload, hardware: Hardware) -> list[Problem]:
    """A dtype that products run in, of which the device has no peak."""
    precision, peaks = workload.precision, hardware.device.peak_flops
    wanted = dict.fromkeys((precision.compute, precision.of("compute")))
    allowed = f"products in {', '.join(peaks)}, which {hardware.device.kind} has"
    found = f"{precision}, with products in"
    return [
        Problem("--precision", "", f"{found} {dtype}", allowed)
        for dtype in wanted
        if dtype not in peaks
    ]


def load_machine(question: Question, problems: Problems) -> tuple[Hardware | None, Stack | None]:
    """Hardware and stack of a question; problems are recorded."""
    overrides = _overrides(question.overrides, problems)
    hardware = problems.attempt(lambda: load_hardware(question.machine, overrides))
    keys = (*PARSERS, *sorted(LATER), "precision")
    stack = problems.attempt(lambda: load_stack(question.stack or DEFAULT_STACK, keys))
    return hardware, stack


def _overrides(texts: Sequence[str], problems: Problems) -> dict[str, str]:
    """`path=value` texts as a table."""
    table: dict[str, str] = {}
    for text in texts:
        path, equals, value = (part.strip() for part in text.partition("="))
        if not (path and equals and value):
            problems.found.append(Problem("--set", "", f"`{text}`", "path=value"))
        elif path in table:
            problems.found.append(Problem("--set", path, f"a second value {value}", "one a path"))
        else:
            table[path] = value
    return table


def _parse(document: Mapping[str, Any]) -> Workload:
    """The workload; a problem names the flag, not the path in a document nobody wrote."""
    try:
        return parse_workload(dict(document), "options")
    except InputError as error:
        raise InputError([_as_flag(problem) for problem in error.problems]) from None


def _as_flag(problem: Problem) -> Problem:
    name, _, part = problem.field.removeprefix("$.").partition(".")
    flag = "--" + name.removesuffix("_bytes").replace("_", "-")
    return replace(problem, source=flag, field=part.removeprefix("hyper.").removesuffix("name"))


def _workload(
    question: Question,
    config: DecoderConfig | None,
    machine: tuple[Hardware | None, Stack | None],
    pins: Pins,
    problems: Problems,
) -> tuple[dict[str, Any], list[str]]:
    """The workload's document, and what of it was assumed.

    Without a model or machine, which is a problem already, placeholders let the rest be judged.
    """
    hardware, stack = machine
    given = dict(question.options.given)
    given |= {name: _number(given[name]) for name in NUMBERS if name in given}
    headroom = given.pop("memory_headroom", None)
    optimizer = given.pop("optimizer", None)
    lengths = lengths_document(str(given.pop("lengths", FIXED)), problems.found)
    filling = question.batch or (filling_batch(hardware.count, pins) if hardware else 1)
    assumed: dict[str, Any] = {
        "global_batch_size": filling,
        "seq_len": min(DEFAULT_SEQ_LEN, config.max_positions) if config else 1,
        "precision": usual_precision(hardware, stack) if hardware else "fp32",
    }
    words = {"global_batch_size": "batch", "seq_len": "sequence", "precision": "precision"}
    notes = [f"{words[k]} {value}" for k, value in assumed.items() if k not in given]
    notes += ["optimizer adamw"] if optimizer is None else []
    precision = given.get("precision", assumed["precision"])
    document = {
        **assumed, **given,
        "optimizer": optimizer_document(str(optimizer or "adamw"), problems.found),
        "precision": precision_document(str(precision), problems.found),
        "lengths": lengths,
    }  # fmt: skip
    if hardware:
        document["memory_headroom_bytes"] = _headroom(headroom, hardware, problems)
        notes += [] if headroom else [f"headroom {format_bytes(usual_headroom(hardware))}"]
    return document, notes


def _number(text: str | int | float) -> str | int | float:
    """A number where the text is one, so that it is judged like a number in a file."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def filling_batch(devices: int, pins: Pins) -> int:
    """Sequences of a batch that keeps every device busy.

    A multiple of the devices, so that any degree divides it, and of a pinned micro-batch.
    """
    pin = pins.get("micro_batch")
    micro = pin.single if pin and isinstance(pin.single, int) else 1
    return devices * micro * -(-SEQUENCES_PER_DEVICE // micro)


def usual_precision(hardware: Hardware, stack: Stack | None = None) -> str:
    """The stack's usual bundle, or bf16_mixed, on devices made for it; fp32 without bf16 and where
    devices are host cores.
    """
    made_for = "bf16" in hardware.device.peak_flops and not hardware.host.ranks_share_cores
    usual = stack.defaults.get("precision", "bf16_mixed") if stack else "bf16_mixed"
    return str(usual) if made_for else "fp32"


def usual_headroom(hardware: Hardware) -> int:
    """Bytes that a plan leaves free on every device of a machine, by default."""
    return headroom_of(hardware.device.memory)


def headroom_of(memory: int) -> int:
    """6 % of a device's memory, at least 1 GiB but on small devices."""
    share = round(HEADROOM_SHARE * memory)
    return share if memory < SMALL_DEVICE else max(share, HEADROOM_LEAST)


def _headroom(text: Text, hardware: Hardware, problems: Problems) -> int:
    if text is None:
        return usual_headroom(hardware)
    stripped = str(text).strip()
    try:
        if stripped.endswith("%"):
            nbytes = float(stripped[:-1]) / 100 * hardware.device.memory
        else:
            nbytes = parse_quantity(stripped)
    except (ValueError, OverflowError):
        nbytes = -1.0
    if not 0 <= nbytes < hardware.device.memory:
        capacity = format_bytes(hardware.device.memory)
        allowed = f"bytes such as 2GiB, or a share such as 6%, below the {capacity} of a device"
        problems.found.append(Problem("--memory-headroom", "", f"`{text}`", allowed))
        return 0
    return round(nbytes)
