"""What is measured: training steps of growing decoders, and Programs that only communicate.

A step of a decoder holds every operator that plans are made of, in the shapes and the order in
which they come. Its sizes grow until a step takes too long, so that the same ladder suits a core
and an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from autoplan.files.machine_spec import resize
from autoplan.files.stack import load_stack
from autoplan.frontends import step_graph
from autoplan.ir.graph import Graph
from autoplan.ir.layout import Axis, Mesh
from autoplan.ir.machine import Hardware
from autoplan.ir.model import DecoderConfig
from autoplan.ir.program import (
    Action,
    Formal,
    Instr,
    Program,
    Register,
    Segment,
    SlotSpec,
    StageProgram,
)
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload
from autoplan.lower import lower
from autoplan.presets import build_plan, parse_pins
from autoplan.units import KIB, MIB

STACK = "autoplan"
"""What is measured is the runtime's own."""

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
TRANSFER = "send"
"""A tensor to a neighbour and back, half of which counts."""
SIZES = tuple(KIB << shift for shift in range(0, 16, 2))
"""1 KiB to 16 MiB: bytes of one rank's operand."""

HEAD = 64
LAYERS, SEQUENCES = 2, 4
DROPOUT = 0.1
"""Of GPT-2. Its attention's own would take the kernel that stores the scores: not measured."""
SMALLEST = 64
"""Width of the smallest decoder, and positions of its sequences."""
LARGEST_WIDTH = 8192
LONG_RATIO = 4
"""Of a long sequence to the usual one, and of the usual width to its."""
MOST_CALLS, LEAST_CALLS = 64, 4
CALLED_BYTES = 32 * MIB
"""Operand bytes of a step's calls, within these bounds of their number."""

COMPUTE = "compute"
"""An instruction that computes for a while; what, is the business of who performs it."""

TRANSFER_MARKS = 5
"""Feed, send, wait, receive and free of a transfer and its answer."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A decoder and its data.

    Attributes:
        width: of the model.
        seq_len: positions of a sequence.
        family: `llama`, or `gpt2` with other norms, biases, dropout and learned positions.
    """

    width: int
    seq_len: int
    family: str = "llama"

    def __str__(self) -> str:
        return f"{self.family} of width {self.width}, {SEQUENCES} x {self.seq_len} tokens"


def ladder() -> Iterator[Rung]:
    """Sizes to measure, growing; beside them the other family, narrow and with long sequences."""
    step = 0
    while SMALLEST << step <= LARGEST_WIDTH:
        width, seq_len = SMALLEST << step, SMALLEST << step // 2
        yield Rung(width, seq_len)
        if width >= LONG_RATIO * SMALLEST:
            yield Rung(width // LONG_RATIO, seq_len * LONG_RATIO, "gpt2")
        step += 1


def step_program(rung: Rung, precision: str, hardware: Hardware) -> tuple[Graph, Program]:
    """One rank's training step.

    Args:
        rung: its size.
        precision: a key of `PRECISIONS`.
        hardware: any machine; a plan names one, and lowering reads no price.
    """
    config = DECODERS[rung.family](rung)
    workload = Workload("train", SEQUENCES, rung.seq_len, PRECISIONS[precision], Optimizer())
    graph = step_graph(config, workload)
    machine = (resize(hardware, "1"), load_stack(STACK))
    return graph, lower(graph, build_plan(graph, config, machine, workload, parse_pins([])))


def _llama(rung: Rung) -> DecoderConfig:
    width, heads = rung.width, max(1, rung.width // HEAD)
    return DecoderConfig(
        family="llama",
        name=str(rung),
        hidden=width,
        layers=LAYERS,
        heads=heads,
        kv_heads=max(1, heads // 2),
        head_dim=min(width, HEAD),
        ffn=width * 5 // 2,
        vocab=width * 4,
        max_positions=rung.seq_len,
    )


def _gpt2(rung: Rung) -> DecoderConfig:
    like = _llama(rung)
    return replace(
        like, family="gpt2", kv_heads=like.heads, ffn=rung.width * 4, norm="layer_norm",
        activation="gelu_tanh", gated=False, qkv_bias=True, output_bias=True, mlp_bias=True,
        rope_theta=None, learned_positions=True, tied_embeddings=True,
        embedding_dropout=DROPOUT, residual_dropout=DROPOUT,
    )  # fmt: skip


DECODERS: Mapping[str, Callable[[Rung], DecoderConfig]] = {"llama": _llama, "gpt2": _gpt2}
"""Family -> a decoder of a rung's size."""


def group_shapes(ranks: int) -> tuple[tuple[int, int], ...]:
    """(members, stride) of the groups to measure: neighbours, and ranks as far apart as can be."""
    sizes = [size for size in range(2, ranks + 1) if ranks % size == 0]
    return tuple(
        (size, stride) for size in sizes for stride in dict.fromkeys((1, ranks // size))
    )  # fmt: skip


def group_mesh(ranks: int, members: int, stride: int) -> tuple[Mesh, int]:
    """(all ranks, index of the axis along which such groups lie)."""
    others = ranks // members
    if stride == 1:
        return Mesh((Axis("other", others, members), Axis("group", members, 1))), 1
    return Mesh((Axis("group", members, others), Axis("other", others, 1))), 0


def collective_program(
    kind: str, nbytes: int, shape: tuple[int, int], ranks: int, computes: bool = False
) -> Program:
    """A step of collectives, one after the other, each result dropped at once.

    Args:
        kind: of `COLLECTIVES`.
        nbytes: of one rank's operand.
        shape: (members, stride) of the groups.
        ranks: all of them.
        computes: whether every rank computes before each. Where ranks are cores, messages wait for
            who computes there, and ranks for each other: a collective then takes several times what
            it takes back to back.
    """
    mesh, axis = group_mesh(ranks, *shape)
    attrs: Mapping[str, object] = {
        "axes": (axis,),
        "dims": ((0, 0),) if kind == "all_to_all" else (0,),
        "reduction": "sum",
    }
    results = {"all_gather": nbytes * shape[0], "reduce_scatter": nbytes // shape[0]}
    out = operand_type(results.get(kind, nbytes))
    call = Instr(kind, (0,), (1,), tuple(sorted(attrs.items())))
    return _calls(call, nbytes, out, mesh, computes)


def idle_program() -> Program:
    """A step of instructions that do nothing."""
    mesh = Mesh((Axis("rank", 1, 1),))
    return _calls(Instr("nothing", (0,), (1,)), SIZES[0], operand_type(SIZES[0]), mesh)


def _calls(instr: Instr, nbytes: int, out: Register, mesh: Mesh, computes: bool = False) -> Program:
    code: list[Instr] = []
    for _ in range(calls(nbytes)):
        if computes:
            code.append(_dropped(Instr(COMPUTE, (0,), ()), len(code) + 1))
        code.append(_dropped(instr, len(code) + 1))
    outs = [operand_type(nbytes) if one.op == COMPUTE else out for one in code]
    registers = (operand_type(nbytes), *outs)
    lent = Formal(0, "in", "x", None, per_micro_batch=False)
    segment = Segment("F", (lent,), registers, tuple(code))
    stage = StageProgram(0, mesh, {"F": segment}, (Action("F", "F"),), (), {}, {}, {})
    return Program((stage,), 1, 1, 1, {}, {})


def _dropped(instr: Instr, register: int) -> Instr:
    """The instruction with its result in a register, and dropped."""
    return replace(instr, outs=(register,), frees=(register,))


def calls(nbytes: int) -> int:
    """How often an operand of a size is communicated in a step."""
    return max(LEAST_CALLS, min(MOST_CALLS, CALLED_BYTES // nbytes))


def transfer_program(nbytes: int, ranks: int) -> Program:
    """A step in which the first half of the ranks send to the second, and get it back."""
    half = ranks // 2
    register = operand_type(nbytes)
    received = {"x": SlotSpec(("x", -1, -1), register, (), (), ("channel",))}
    fed = {"x": SlotSpec(("x", -1, -1), register, (), (), ("feed", "x"))}
    first: list[Action] = []
    second: list[Action] = []
    for number in range(calls(nbytes)):
        call = Action("FEED", micro_batch=number, slots=("x",))
        there, back = call._replace(peer=1), call._replace(peer=0)
        first += [call]
        first += [there._replace(kind=kind) for kind in ("SEND", "WAIT", "RECV")]
        first += [call._replace(kind="FREE")]
        second += [back._replace(kind=kind) for kind in ("RECV", "SEND", "WAIT")]
    near, far = (Mesh((Axis("rank", half, 1),), offset) for offset in (0, half))
    return Program(
        (
            StageProgram(0, near, {}, tuple(first), (), fed, received, {}),
            StageProgram(1, far, {}, tuple(second), (), {}, received, {}),
        ),
        calls(nbytes), 1, 1, {}, {},
    )  # fmt: skip


def operand_type(nbytes: int) -> Register:
    """A flat fp32 operand of a size."""
    return Register("x", (nbytes // 4,), "fp32", "communication")
