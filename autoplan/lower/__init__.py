"""Lowering (floor 3): Plan -> Program, and the checks of a Program.

    builder    registers, instructions, transitions, frees
    segments   forward and backward of a block
    step       gathers, reductions, norm, optimizer
    stage      the order of actions of one stage
    member     block instances of a stage, segments that stages share
    slots      what a stage is lent, fed and sent
    program    all stages; problems of a plan, all at once
    check      what must hold of any Program, wherever it came from

Lowering reads no price: routes and orders are fixed rules or decisions of the Plan.
"""

from autoplan.lower.program import lower, stage_instances

__all__ = ["lower", "stage_instances"]
