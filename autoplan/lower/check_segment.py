"""What must hold inside a segment, whoever calls it.

Every instruction defines new values, in-place results included, so a removed instruction leaves a
value undefined and a swap across a dependency reads one too early, or one whose buffer is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from autoplan.errors import CheckError
from autoplan.ir.program import COLLECTIVES, Formal, Instr, Register, Segment
from autoplan.ops import FAMILIES

Shape = tuple[int, ...]
BEFORE = -1
"""Where a formal's value is defined: before the first instruction."""


def check_segment(segment: Segment, sizes: Sequence[int], groups: Mapping[str, int]) -> None:
    """Check one segment.

    Args:
        segment: what to check.
        sizes: ranks per axis of the mesh that it runs on.
        groups: ranks in each named group that the mesh takes part in.

    Raises:
        CheckError: names the instruction and both sides of the first rule that is broken.
    """
    _Segment(segment).check()
    for index, instr in enumerate(segment.code):
        fault = ""
        if instr.op in COLLECTIVES or instr.op == "slice":
            fault = _collective_fault(segment, instr, sizes, groups)
        elif instr.op not in FAMILIES:
            fault = f"{instr.op} is no operator family"
        if fault:
            raise CheckError(f"{_where(segment, index)}: {fault}")


def _where(segment: Segment, index: int) -> str:
    if index == BEFORE:
        return f"{segment.key}: its formals"
    instr = segment.code[index]
    return f"{segment.key}, instruction {index}, {_text(segment, instr)}"


def _text(segment: Segment, instr: Instr) -> str:
    outs, ins = (", ".join(_name(segment, r) for r in side) for side in (instr.outs, instr.ins))
    return f"{outs} = {instr.op}({ins})"


def _name(segment: Segment, register: int) -> str:
    known = 0 <= register < len(segment.registers)
    return f"%{register} {segment.registers[register].name}" if known else f"%{register}"


class _Segment:
    """Walks a segment's code and knows of every register where it was defined, read and taken."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.defined: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.exported: dict[int, Formal] = {}
        self.lent: set[int] = set()

    def check(self) -> None:
        self._enter()
        for index, instr in enumerate(self.segment.code):
            for register in instr.ins:
                self._usable(register, index, "reads")
                self.read[register] = index
            self._define(index, instr)
        self._leave()
        self._nothing_is_idle()
        self._frees()

    def _fail(self, index: int, fault: str) -> None:
        raise CheckError(f"{_where(self.segment, index)}: {fault}")

    def _name(self, register: int) -> str:
        return _name(self.segment, register)

    def _enter(self) -> None:
        """Bind what formals bring in; no slot may enter or leave twice."""
        sides: tuple[set[object], set[object]] = (set(), set())
        for formal in self.segment.formals:
            for side, intents in zip(sides, (("in", "move", "acc"), ("out", "acc")), strict=True):
                slot = (formal.name, formal.layer, formal.per_micro_batch)
                if formal.intent in intents and slot in side:
                    self._fail(BEFORE, f"slot {formal.name} is bound twice")
                if formal.intent in intents:
                    side.add(slot)
            if formal.intent == "out":
                continue
            self._new(formal.register, BEFORE)
            if formal.intent == "in":
                self.lent.add(formal.register)

    def _new(self, register: int, index: int) -> None:
        if not 0 <= register < len(self.segment.registers):
            self._fail(index, f"%{register} is no register")
        if register in self.defined:
            first = _where(self.segment, self.defined[register])
            self._fail(index, f"defines {self._name(register)} again, after {first}")
        self.defined[register] = index

    def _usable(self, register: int, index: int, verb: str) -> None:
        if register not in self.defined:
            self._fail(index, f"{verb} {self._name(register)}, which is not defined there")
        if register in self.taken:
            taker = _where(self.segment, self.taken[register])
            self._fail(
                index, f"{verb} {self._name(register)}, whose buffer was taken before by {taker}"
            )

    def _define(self, index: int, instr: Instr) -> None:
        if len(instr.alias) != len(instr.outs):
            self._fail(index, f"{len(instr.alias)} aliases for {len(instr.outs)} results")
        for register, source in zip(instr.outs, instr.alias, strict=True):
            self._new(register, index)
            if source == -1:
                continue
            if source not in instr.ins:
                self._fail(index, f"takes the buffer of {self._name(source)}, not an operand")
            if source in self.lent:
                self._fail(index, f"takes the buffer of {self._name(source)}, which is only lent")
            if source in self.taken:
                self._fail(index, f"takes the buffer of {self._name(source)} twice")
            old, new = self.segment.registers[source], self.segment.registers[register]
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                self._fail(index, f"puts {_type(new)} in the buffer of {_type(old)}")
            self.taken[source] = index

    def _leave(self) -> None:
        """What leaves must be there; an accumulator must come back as a result that used it."""
        for formal in self.segment.formals:
            end = len(self.segment.code) - 1
            if formal.intent == "acc":
                if self.defined.get(formal.returns, BEFORE) == BEFORE:
                    self._fail(end, f"nothing computes what accumulator {formal.name} returns")
                if formal.register not in self.read:
                    self._fail(BEFORE, f"nothing adds to accumulator {formal.name}")
            if formal.intent in ("out", "acc"):
                register = formal.returns if formal.intent == "acc" else formal.register
                self._usable(register, end, f"slot {formal.name} takes")
                if register in self.exported or register in self.lent:
                    self._fail(end, f"{self._name(register)} would belong to two slots")
                self.exported[register] = formal

    def _nothing_is_idle(self) -> None:
        """Every formal is read or leaves; of every instruction at least one result does."""
        for formal in self.segment.formals:
            if formal.register not in self.read and formal.register not in self.exported:
                self._fail(BEFORE, f"nothing reads {formal.intent} slot {formal.name}")
        for index, instr in enumerate(self.segment.code):
            if not any(r in self.read or r in self.exported for r in instr.outs):
                self._fail(index, "nothing reads its results and none leaves")

    def _frees(self) -> None:
        """Registers are freed exactly where they are read last (or defined, where nothing does)."""
        expected: dict[int, set[int]] = {}
        for register, index in self.defined.items():
            if register in self.lent or register in self.exported:
                continue
            expected.setdefault(self.read.get(register, index), set()).add(register)
        for index, instr in enumerate(self.segment.code):
            wanted, found = expected.get(index, set()), set(instr.frees)
            if wanted != found or len(found) != len(instr.frees):
                names = [
                    ", ".join(map(self._name, sorted(s))) or "nothing" for s in (found, wanted)
                ]
                self._fail(index, f"frees {names[0]}, but is the last to use {names[1]}")


def _type(register: Register) -> str:
    return f"{register.name} {register.dtype}{list(register.shape)}"


def _collective_fault(
    segment: Segment, instr: Instr, sizes: Sequence[int], groups: Mapping[str, int]
) -> str:
    """What is wrong with a collective or a slice, or ""."""
    if len(instr.ins) != len(instr.outs):
        return f"{len(instr.ins)} operands give {len(instr.outs)} results"
    axes = instr.attr("axes")
    if isinstance(axes, str):
        if axes not in groups:
            return f"no group {axes} has all ranks of the stage"
        ranks = groups[axes]
    elif list(axes) != sorted(set(axes)) or not all(0 <= a < len(sizes) for a in axes):
        return f"axes {axes} are not axes of a mesh {tuple(sizes)} in order"
    else:
        ranks = prod(sizes[a] for a in axes)
    if ranks < 2:
        return "its group is one rank, so it communicates nothing"
    for position, (source, result) in enumerate(zip(instr.ins, instr.outs, strict=True)):
        before, after = segment.registers[source], segment.registers[result]
        if before.dtype != after.dtype:
            return f"turns {_type(before)} into {_type(after)}"
        expected = _result_shape(instr, position, before.shape, ranks)
        if expected is None:
            return f"{_type(before)} does not divide over {ranks} ranks"
        if expected != after.shape:
            return (
                f"over {ranks} ranks {_type(before)} becomes {list(expected)}, not {_type(after)}"
            )
    return ""


def _result_shape(instr: Instr, position: int, shape: Shape, ranks: int) -> Shape | None:
    """Local shape of a collective's result; None where dims do not divide."""
    if instr.op == "all_reduce":
        softmax = instr.attr("reduction") == "softmax"
        return None if softmax and shape[-1:] != (2,) else shape
    dims = instr.attr("dims")
    grows = shrinks = None
    if instr.op == "slice":
        shrinks = instr.attr("dim")
    elif instr.op == "all_gather":
        grows = dims[position]
    elif instr.op == "reduce_scatter":
        shrinks = dims[position]
    else:
        grows, shrinks = dims[position]
    result = list(shape)
    if grows is not None:
        result[grows] *= ranks
    if shrinks is not None:
        if result[shrinks] % ranks:
            return None
        result[shrinks] //= ranks
    return tuple(result)
