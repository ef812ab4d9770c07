"""Measuring this machine: all ranks busy, a step at a time, into a hardware profile.

Devices are those that torch finds; where there is none, ranks are this host's cores. Whatever is
not measured stays as the profile says that this one extends.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from statistics import fmean, median

import torch

from autoplan.cost.collectives import mesh_groups
from autoplan.cost.pricer import communicates, measure, start_share
from autoplan.errors import Problem
from autoplan.files.machine_spec import load_hardware, resize
from autoplan.files.problems import Problems
from autoplan.files.stack import load_stack
from autoplan.ir.machine import Hardware
from autoplan.ir.program import Program
from autoplan.ops import Work
from autoplan.runtime.pool import Pool
from autoplan.runtime.supervise import Watch
from autoplan.units import KIB, MIB
from autoplan.validate.measure import programs, tasks
from autoplan.validate.measure.assemble import Node, as_node, with_rate
from autoplan.validate.measure.compute import DeviceFit, Reading, fit_device, pooled, scatter
from autoplan.validate.measure.crowd import Crowd, Pause, Turn, find_crowd, uncrowded
from autoplan.validate.measure.links import Call, LevelFit, fit_cores, fit_level
from autoplan.validate.measure.rounding import rounded

HOST_PROFILE = "cpu-host"
"""What is extended where ranks are cores and nobody says otherwise."""
MOST_RANKS = 64
FULL_SHARE = 0.95
"""A rank that had less of its core was disturbed. Source: repeated products, whose rate by the
core's own time is steady to 3 % whatever else runs."""

TURNS = 2
"""Of every step on all ranks and on one alone."""
PAUSES = (1, 4, 16)
"""Products of matrices before a collective: from half a millisecond of a core to seven."""
PAUSE_BYTES = 64 * KIB
"""A message whose own time is short."""
PRECISIONS = {"cpu": ("fp32", "bf16_pure", "fp64", "fp32"), "cuda": ("bf16_pure", "fp32", "fp64"),
              "npu": ("bf16_pure", "fp32")}  # fmt: skip
"""By kind of device, the usual one first. A host is measured again in it: how much of its cores it
has, changes within minutes."""
SPOKEN = 0.97
"""Share of the whole that is done when collectives and transfers are measured."""
ROUNDS = 3
"""Of these."""
Progress = Callable[[str, float], None] | None
"""(what is measured, share of the whole that is done)."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        longest: a step that takes more seconds ends the ladder.
        parameters: the most of a decoder.
        steps: of each.
        sizes: bytes of communicated operands.
        pauses: turns of collectives after computing of several lengths.
    """

    longest: float = 0.25
    parameters: int = 1 << 28
    steps: int = 4
    sizes: tuple[int, ...] = programs.SIZES
    pauses: int = 6


@dataclass(frozen=True)
class Measured:
    """A measured machine.

    Attributes:
        hardware: the profile.
        device: the fitted device, and steps beside their prices.
        readings: every instruction.
        level: the fitted level, or None for one rank.
        share: of its core that the most disturbed rank had.
        interpreter: seconds of an instruction that does nothing.
        outside: median share of a step that belongs to no instruction.
    """

    hardware: Hardware
    device: DeviceFit
    readings: tuple[Reading, ...]
    level: LevelFit | None
    share: float
    interpreter: float
    outside: float

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know before believing the numbers."""
        notes = []
        if self.share < FULL_SHARE:
            notes.append(
                f"a rank had only {self.share:.0%} of its core: something else runs here, and "
                "what was measured by the clock (communication) is too slow"
            )
        return tuple(notes)


def device_type() -> str:
    """`cuda` or `npu` where torch finds such a device, else `cpu`; makes no device context."""
    for name in ("cuda", "npu"):
        module = getattr(torch, name, None)
        if module is not None and module.device_count():
            return name
    return "cpu"


def measure_machine(
    name: str, ranks: int | None = None, extends: str = "", effort: Effort | None = None,
    progress: Progress = None,
) -> Measured:  # fmt: skip
    """Measure this machine.

    Args:
        name: of the profile.
        ranks: processes at once; None for one a device, or one a core.
        extends: profile whose numbers stand where nothing is measured; "" for the host's.
        effort: how much is measured.
        progress: told what is being measured.

    Raises:
        InputError: bad number of ranks, or no such profile.
        LaunchError: a worker died or hung.
    """
    kind = device_type()
    parent, count = _checked(kind, ranks, extends)
    torch.set_num_threads(1)  # workers are forked, which other threads do not survive
    with Pool(kind) as pool:
        pool.grow(count)
        bench = _Bench(pool, kind, parent, count, effort or Effort())
        return bench.run(name, progress)


def _checked(kind: str, ranks: int | None, extends: str) -> tuple[Hardware, int]:
    """The profile that is extended and the number of ranks; all problems at once."""
    problems = Problems("--ranks")
    name = extends or (HOST_PROFILE if kind == "cpu" else "")
    if not name:
        found, allowed = f"nothing, with {kind} devices here", "the profile of such a device"
        problems.found.append(Problem("--extends", "", found, allowed))
    parent = problems.attempt(lambda: load_hardware(name)) if name else None
    here = torch.get_device_module(kind).device_count() if kind != "cpu" else MOST_RANKS
    count = _cores() if kind == "cpu" else here
    if ranks is not None:
        count = ranks
    if not 1 <= count <= here:
        problems.add("", count, f"1 to {here}")
    problems.check()
    assert parent is not None, "a missing one is a problem"
    return parent, count


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class _Bench:
    """One measurement: a pool of ranks, and what is found with it."""

    def __init__(self, pool: Pool, kind: str, parent: Hardware, ranks: int, effort: Effort) -> None:
        self._pool, self._kind, self._parent = pool, kind, parent
        self._ranks, self._effort = ranks, effort
        self._share = 1.0
        self._outside: list[float] = []
        self._turns: list[Turn] = []
        self._computed: list[float] = []

    def run(self, name: str, progress: Progress) -> Measured:
        tell = progress or (lambda what, done: None)
        tell("host and device", 0.0)
        idle = programs.idle_program()
        facts = self._pool.run(tasks.tell_facts, [None] * self._ranks, Watch(idle))
        readings = pooled(self._steps(tell))
        calls = tuple(self._calls(tell))
        pauses = tuple(self._pauses(tell)) if calls and self._kind == "cpu" else ()
        idling = self._idle(idle)
        tell("fitting", 1.0)
        one = resize(self._parent, "1")
        stack = load_stack(programs.STACK)
        crowd = find_crowd(self._turns, self._ranks, _cores(), pauses)
        source = f"the steps of decoders, {self._how()}"
        fitted = fit_device(uncrowded(readings, crowd), one, stack, source)
        machine = as_node(self._parent, name, self._node(facts, crowd), fitted)
        fit = fit_cores if self._kind == "cpu" else fit_level
        level = fit(calls, machine, 0) if calls else None
        if level is not None and level.start:
            # They were measured after some computing; a profile says what the longest leads to.
            ramp = machine.host.start_ramp
            level = replace(level, start=level.start / start_share(median(self._computed), ramp))
        if level is not None:
            how = f"collectives and transfers, {self._how()}"
            machine = with_rate(machine, 0, level, how)
        return Measured(
            rounded(machine), fitted, readings, level, self._share, idling, median(self._outside)
        )

    def _how(self) -> str:
        today = datetime.now(UTC).date().isoformat()
        return f"{self._ranks} ranks at once, torch {torch.__version__}, {today}"

    # --- computing ------------------------------------------------------------------------------

    def _steps(self, tell: Callable[[str, float], None]) -> Iterator[Reading]:
        precisions = PRECISIONS[self._kind]
        for number, precision in enumerate(precisions):
            for height, rung in enumerate(programs.ladder()):
                graph, program = programs.step_program(rung, precision, self._parent)
                if _parameters(program) > self._effort.parameters:
                    break
                done = (number + 1 - 2.0 ** -height) / (len(precisions) + 1)  # fmt: skip
                tell(f"{precision} step, {rung}", done)
                job = tasks.StepJob(program, graph, self._effort.steps)
                times = self._pool.run(tasks.time_step, [job] * self._ranks, Watch(program))
                yield from self._read(str(rung), precision, program, times)
                if self._kind == "cpu" and precision == precisions[0]:
                    self._turns += self._take_turns(job, times)
                if median(median(one.wall) * one.share for one in times) > self._effort.longest:
                    break

    def _take_turns(self, job: tasks.StepJob, times: Sequence[tasks.StepTimes]) -> Iterator[Turn]:
        """A step on all ranks, of which `times` are the first, and on one, in turn."""
        for number in range(TURNS):
            if number:
                jobs = [job] * self._ranks
                times = self._pool.run(tasks.time_step, jobs, Watch(job.program))
            alone = self._pool.run(tasks.time_step, [job], Watch(job.program))
            yield Turn(*_step_seconds(times), *_step_seconds(alone))

    def _read(
        self, step: str, precision: str, program: Program, times: Sequence[tasks.StepTimes]
    ) -> Iterator[Reading]:
        """Readings of one step: instructions that do the same are one."""
        stage = program.stages[0]
        seconds: dict[tuple[str, Work, str], list[float]] = {}
        count: Counter[tuple[str, Work, str]] = Counter()
        for place in times[0].instructions:
            segment = stage.segments[stage.actions[place[0]].segment]
            instr = segment.code[place[1]]
            if communicates(instr):
                continue
            own = segment.registers[instr.ins[0]].dtype if instr.ins else ""
            key = (instr.op, measure(instr, segment), str(instr.attr("product", own)))
            count[key] += 1
            for one in times:
                seconds.setdefault(key, []).extend(one.instructions[place])
        for key, values in seconds.items():
            family, work, dtype = key
            yield Reading(step, precision, *key, count[key], tuple(values))
        self._share = min(self._share, *(one.share for one in times))
        for one in times:
            inside = sum(median(values) for values in one.instructions.values())
            self._outside.append(max(0.0, 1 - inside / (median(one.wall) * one.share)))

    # --- communicating --------------------------------------------------------------------------

    def _calls(self, tell: Callable[[str, float], None]) -> Iterator[Call]:
        """Every collective and transfer, in rounds, so that none has a slow minute to itself."""
        table: dict[tuple[str, int], Call] = {}
        for number in range(ROUNDS):
            for call in self._round(tell, number):
                known = table.get((call.shape, call.nbytes))
                seconds = (known.seconds if known else ()) + call.seconds
                table[call.shape, call.nbytes] = replace(call, seconds=seconds)
        yield from table.values()

    def _round(self, tell: Callable[[str, float], None], turn: int) -> Iterator[Call]:
        shapes = programs.group_shapes(self._ranks)
        rows = [(kind, shape) for shape in shapes for kind in programs.COLLECTIVES]
        passed, total = turn * (len(rows) + 1), ROUNDS * (len(rows) + 1)
        first = len(PRECISIONS[self._kind]) / (len(PRECISIONS[self._kind]) + 1)
        sizes = [_divisible(size, self._ranks) for size in self._effort.sizes]
        for number, (kind, shape) in enumerate(rows):
            members, stride = shape
            tell(f"{kind} of {members} ranks, {stride} apart",
                 first + (SPOKEN - first) * (passed + number) / total)  # fmt: skip
            computes = self._kind == "cpu"
            made = [
                programs.collective_program(kind, n, shape, self._ranks, computes) for n in sizes
            ]
            mesh, axis = programs.group_mesh(self._ranks, members, stride)
            groups = tuple(tuple(group) for group in mesh_groups(mesh, [axis]).tolist())
            yield from self._talk(kind, groups, sizes, made)
        if self._ranks % 2 == 0:
            tell("transfers", first + (SPOKEN - first) * (passed + len(rows)) / total)
            half = self._ranks // 2
            pairs = tuple((rank, rank + half) for rank in range(half))
            made = [programs.transfer_program(n, self._ranks) for n in sizes]
            yield from self._talk(programs.TRANSFER, pairs, sizes, made)

    def _talk(
        self,
        kind: str,
        groups: tuple[tuple[int, ...], ...],
        sizes: Sequence[int],
        made: Sequence[Program],
    ) -> Iterator[Call]:
        transfer = kind == programs.TRANSFER
        silent = int(self._kind == "cpu" and not transfer)  # computing that precedes a collective
        marks = programs.TRANSFER_MARKS if transfer else 1 + silent
        steps = ceil(self._effort.steps / ROUNDS)
        jobs = [
            tasks.TalkJob(program, programs.operand_type(size), steps, marks, silent)
            for program, size in zip(made, sizes, strict=True)
        ]
        # The first Program has the most actions, so that every position means something in it.
        answers = self._pool.run(tasks.time_talk, [jobs] * self._ranks, Watch(made[0]))
        for number, size in enumerate(sizes):
            by_rank = [answer[number].seconds for answer in answers if answer[number].seconds]
            # The mean, as of computing: who waits for a rank waits while that computes.
            taken = tuple(fmean(times) / (1 + transfer) for times in zip(*by_rank, strict=True))
            if silent:
                self._computed += (fmean(answer[number].computing) for answer in answers)
            yield Call(kind, groups, size, taken)

    def _pauses(self, tell: Callable[[str, float], None]) -> Iterator[Pause]:
        """Collectives without computing, with it, and computing alone; in turn."""
        size = _divisible(PAUSE_BYTES, self._ranks)
        bare, mixed, alone = (
            programs.collective_program("all_reduce", size, (n, 1), n, computes)
            for n, computes in ((self._ranks, False), (self._ranks, True), (1, True))
        )
        operand = programs.operand_type(size)
        at_once = tasks.TalkJob(bare, operand, 1)
        tell("collectives after computing", SPOKEN)
        for _ in range(self._effort.pauses):
            waited, _ = self._pause(at_once)
            for products in PAUSES:
                job = tasks.TalkJob(mixed, operand, 1, marks=2, silent=1, products=products)
                taken, computed = self._pause(job)
                _, by_itself = self._pause(replace(job, program=alone), ranks=1)
                yield Pause(computed, by_itself, taken - waited)

    def _pause(self, job: tasks.TalkJob, ranks: int | None = None) -> tuple[float, float]:
        """(seconds of a collective, and of the computing before), mean over ranks."""
        jobs = [[job]] * (ranks or self._ranks)
        talks = [answer[0] for answer in self._pool.run(tasks.time_talk, jobs, Watch(job.program))]
        taken, computed = (fmean(fmean(talk[part]) for talk in talks) for part in range(2))
        return taken, computed

    def _idle(self, idle: Program) -> float:
        jobs = [tasks.TalkJob(idle, programs.operand_type(KIB), self._effort.steps)]
        answers = self._pool.run(tasks.time_talk, [jobs], Watch(idle))
        return float(median(answers[0][0].seconds))

    def _node(self, facts: Sequence[tasks.Facts], crowd: Crowd) -> Node:
        here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        rates = [fact.copy_rate for fact in facts]
        return Node(
            ranks=self._ranks,
            device_memory=facts[0].memory or here // self._ranks,
            memory=here,
            cores=_cores(),
            copy_rate=median(rates),
            copy_spread=scatter(rates),
            how=f"copies of {tasks.COPIED // MIB} MiB, {self._how()}",
            crowd=crowd,
        )


def _step_seconds(times: Sequence[tasks.StepTimes]) -> tuple[float, float]:
    """A step by the ranks' own time and by the clock, median over ranks."""
    own = [sum(median(values) for values in one.instructions.values()) for one in times]
    return median(own), median(median(one.wall) for one in times)


def _parameters(program: Program) -> int:
    """Elements of a step's parameters on its one rank."""
    specs = program.stages[0].resident
    return sum(_elements(spec.register.shape) for spec in specs if spec.source[0] == "parameter")


def _elements(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _divisible(nbytes: int, ranks: int) -> int:
    """A size near that many bytes whose fp32 elements divide by the ranks."""
    unit = 4 * ranks
    return max(1, nbytes // unit) * unit
