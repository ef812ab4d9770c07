"""Where a rank stands: one page of shared memory that its launcher can read at any time.

The page outlives the worker, so it also tells where a rank was when it was killed.
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple

from autoplan.ir.program import Program

_LAYOUT = struct.Struct("<5q")
OUTSIDE = -1
"""Action or instruction index of something that is none: set-up, or an action without a segment."""


class Position(NamedTuple):
    """What a rank is doing.

    Attributes:
        started: instructions started since the process began; never restarts.
        step: index of the training step, or `OUTSIDE`.
        action: index into the stage's actions, or `OUTSIDE`.
        instruction: index into the segment's code, or `OUTSIDE`.
        communicating: whether it waits for other ranks.
    """

    started: int
    step: int
    action: int
    instruction: int
    communicating: bool

    def describe(self, program: Program, rank: int) -> str:
        """`step 0: B layer/B.first i3 m1: all_reduce`."""
        if self.action == OUTSIDE:
            return "set-up" if self.step == OUTSIDE else f"step {self.step}: between actions"
        return f"step {self.step}: {describe_place(program, rank, self.action, self.instruction)}"


def describe_place(program: Program, rank: int, action: int, instruction: int) -> str:
    """`B layer/B.first i3 m1: all_reduce`: an action of a rank's stage and an instruction of it."""
    stage = program.stages[program.stage_of[rank]]
    performed = stage.actions[action]
    if instruction == OUTSIDE:
        return str(performed)
    return f"{performed}: {stage.segments[performed.segment].code[instruction].op}"


class ProgressPage:
    """Shared between a launcher, which creates it and reads, and its worker, which writes."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._started = 0
        _LAYOUT.pack_into(self._memory, 0, 0, OUTSIDE, OUTSIDE, OUTSIDE, 0)

    def advance(self, step: int, action: int, instruction: int, communicating: bool) -> None:
        """Say that everything before is finished and this has started (about 0.1 us)."""
        self._started += 1
        _LAYOUT.pack_into(self._memory, 0, self._started, step, action, instruction, communicating)

    def read(self) -> Position:
        """The position written last."""
        started, step, action, instruction, communicating = _LAYOUT.unpack_from(self._memory, 0)
        return Position(started, step, action, instruction, bool(communicating))
