"""Readings that a machine's own prices make: what a perfect measurement would see."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autoplan.cost import Processor
from autoplan.cost.pricer import communicates, measure
from autoplan.files.machine_spec import load_hardware
from autoplan.files.stack import load_stack
from autoplan.validate.measure.compute import Reading
from autoplan.validate.measure.programs import Rung, step_program

RUNGS = (Rung(64, 64), Rung(128, 256, "gpt2"), Rung(256, 64), Rung(512, 128))
STACK = load_stack("autoplan")


def machine(**device):
    """One core with some of its constants replaced."""
    hardware = load_hardware("cpu-host:1")
    return replace(hardware, device=replace(hardware.device, **device))


def readings(hardware, precisions=("fp32",), noise=lambda: 1.0):
    """Every instruction of some steps, as long as `hardware` says."""
    processor = Processor(hardware, STACK)
    made = []
    for precision in precisions:
        for rung in RUNGS:
            program = step_program(rung, precision, hardware)[1]
            stage = program.stages[0]
            count = Counter()
            for action in stage.actions:
                segment = stage.segments.get(action.segment)
                for instr in segment.code if segment else ():
                    if not communicates(instr):
                        own = segment.registers[instr.ins[0]].dtype if instr.ins else ""
                        count[instr.op, measure(instr, segment), own] += 1
            for (family, work, dtype), often in count.items():
                seconds = processor.work_seconds(work, dtype)
                times = tuple(seconds * noise() for _ in range(5))
                if seconds:
                    made.append(Reading(str(rung), precision, family, work, dtype, often, times))
    return made
