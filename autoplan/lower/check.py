"""What must hold of any Program, wherever it came from.

    check_segment   values, buffers, frees and shapes inside a segment
    check_stage     slots, accumulators and gradients over a stage's actions
    check_order     transfers and groups match; the stages' orders together have no cycle

A Program that passes can be performed by the runtime: nothing is read that is not there, nothing
is left behind, no stage waits for ever. On some transports it is the only protection: two
collectives in opposite order may give wrong sums without an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.errors import CheckError
from autoplan.ir.program import Program, StageProgram
from autoplan.lower.check_order import check_acyclic, check_groups, check_transfers
from autoplan.lower.check_segment import check_segment
from autoplan.lower.check_stage import StageCheck


def check(program: Program) -> None:
    """Check a Program.

    Complexity: linear in actions and in instructions of distinct segments.

    Raises:
        CheckError: names the instruction or action, and both sides, of the first broken rule.
    """
    seen: set[tuple[object, ...]] = set()
    for index, stage in enumerate(program.stages):
        if stage.stage != index:
            raise CheckError(f"stage {stage.stage} stands at position {index}")
        groups = _groups_of(program, stage)
        for key, segment in stage.segments.items():
            if segment.key != key:
                raise CheckError(f"stage {index}: segment `{segment.key}` is filed under `{key}`")
            identity = (id(segment), stage.mesh.sizes, *groups.items())
            if identity not in seen:
                check_segment(segment, stage.mesh.sizes, groups)
                seen.add(identity)
    facts = [StageCheck(stage, program.micro_batches).run() for stage in program.stages]
    check_transfers(program, facts)
    check_groups(program)
    check_acyclic(program, facts)


def _groups_of(program: Program, stage: StageProgram) -> Mapping[str, int]:
    """Named groups in which every rank of the stage stands exactly once -> their ranks."""
    devices = set(stage.mesh.devices())
    table = {}
    for name, parts in program.groups.items():
        ranks = [rank for part in parts for rank in part if rank in devices]
        if sorted(ranks) == sorted(devices):
            table[name] = len(parts[0])
    return table
