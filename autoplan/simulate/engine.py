"""When does each action of each stage start and end?

Every stage has streams: `compute`, `collective`, and one to send to and one to receive from each
neighbour. Actions are issued in order; the time of issue is where the compute stream stands.

    F, B, NORM, STEP   on `compute`, when it is free and what they read is ready; collectives inside
                       a segment are on the critical path and run there as well
    GATHER, REDUCE     on `collective`, not before their issue
    SEND               on its stream, not before its issue; the slot arrives at its end
    RECV               takes no time: a call that reads the slot waits for the arrival
    WAIT               `compute` waits until the slot is sent

A call that joins a group of several stages starts when the last of them is there. While a
collective runs beside it, computing is slower by the pricer's factor. On a machine that overlaps no
collective (ranks are host cores) these are on `compute`; sends go on beside it there as well.

Stages take turns; each goes on until it needs to know what another has not done yet.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from autoplan.cost import Pricer
from autoplan.errors import CheckError
from autoplan.ir.program import Action, Program, Slot, StageProgram
from autoplan.ir.timeline import Span
from autoplan.simulate.calls import KINDS, Call, CallTable, Shares

Identity = tuple[Slot, int, int]
"""(slot, stage that sends, stage that receives)."""

Ready = tuple[float, Shares, float]
"""When a slot is ready, what the seconds before that count as, and how many those are."""

SENDING: Shares = (("send", 1.0),)


@dataclass
class Exchange:
    """What stages learn from each other.

    Attributes:
        arrivals: transfer -> (end, seconds that it took).
        joined: (group, number of the use) -> stage -> when it was there.
        participants: group -> number of stages.
        spans: what happened, or None where nobody asks.
    """

    participants: dict[str, int]
    spans: list[Span] | None
    arrivals: dict[Identity, tuple[float, float]] = field(default_factory=dict)
    joined: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """Result of a simulation.

    Attributes:
        makespan: seconds from the first action to the last.
        spent: per stage, seconds by kind; they add up to the makespan.
        spans: what happened, if asked for.
    """

    makespan: float
    spent: tuple[dict[str, float], ...]
    spans: tuple[Span, ...]


def run(program: Program, pricer: Pricer, spans: bool = False) -> Outcome:
    """Simulate one step.

    Complexity: one to two microseconds an action.

    Raises:
        CheckError: stages wait for each other; says who waits for what.
    """
    table = CallTable(program, pricer)
    exchange = Exchange(dict(table.participants), [] if spans else None)
    stages = [
        StageRun(program, stage, table.stage(stage), pricer, exchange) for stage in program.stages
    ]
    waiting = stages
    while waiting:
        moved = [stage.advance() for stage in waiting]
        if not any(moved):
            lines = [f"  {stage.waits_for()}" for stage in waiting]
            raise CheckError("\n".join(["deadlock: no stage can go on", *lines]))
        waiting = [stage for stage in waiting if not stage.done]
    makespan = max(stage.end for stage in stages)
    spent = tuple(stage.spent_until(makespan) for stage in stages)
    return Outcome(makespan, spent, tuple(exchange.spans or ()))


class StageRun:
    """One stage under way.

    Args:
        program: the step.
        stage: its part.
        calls: segment key -> call.
        pricer: what sends cost.
        exchange: shared by all stages.
    """

    def __init__(
        self, program: Program, stage: StageProgram, calls: dict[str, Call], pricer: Pricer,
        exchange: Exchange,
    ) -> None:  # fmt: skip
        self.program, self.stage, self.pricer = program, stage, pricer
        self.calls, self.exchange = calls, exchange
        self.compute = self.collective = 0.0
        self._position = 0
        self._channels: dict[int, float] = defaultdict(float)
        self._sent: dict[tuple[Slot, int], float] = {}
        self._ready: dict[Slot, Ready] = {}
        self._expected: dict[Slot, Identity] = {}
        self._transfers: dict[tuple[str, int], float] = {}
        self._uses: dict[str, int] = defaultdict(int)
        self._busy_since = 0.0
        self._last_shares: Shares = ()
        self._exposed: dict[str, float] = dict.fromkeys(KINDS, 0.0)
        self._blocked = ""

    @property
    def done(self) -> bool:
        """Whether every action is issued."""
        return self._position == len(self.stage.actions)

    @property
    def end(self) -> float:
        """When its last stream is free."""
        return max(self.compute, self.collective, *self._channels.values(), 0.0)

    def waits_for(self) -> str:
        """What the stage stands at, for people."""
        action = self.stage.actions[self._position]
        where = f"stage {self.stage.stage}, action {self._position}, {action}"
        return f"{where}: waits for {self._blocked}"

    def advance(self) -> bool:
        """Perform actions until one needs what is not known yet; whether there were any."""
        actions, calls = self.stage.actions, self.calls
        begin = position = self._position
        while position < len(actions):
            action = actions[position]
            if action.segment:
                if not self._call(action, calls[action.segment]):
                    break
            elif action.kind != "FREE" and not self._transfer(action):
                break
            position += 1
        self._position = position
        return position > begin

    # --- calls ----------------------------------------------------------------------------------

    def _call(self, action: Action, call: Call) -> bool:
        """Perform a call; False if it needs what is not known yet."""
        start = self.compute
        if call.asynchronous and self.collective > start:
            start = self.collective
        cause: Ready | None = None
        for place in call.waits:
            ready = self._when(place.slot(action.instance, action.micro_batch))
            if ready is None:
                return False
            if ready[0] > start:
                start, cause = ready[0], ready
        alone = start
        if call.joins:
            joined = self._join(call, start)
            if joined is None:
                return False
            start = joined
        if call.asynchronous:
            self._run_beside(action, call, start)
            return True
        if cause:
            self._expose(alone - self.compute, cause)
        self._exposed["bubble"] += start - alone
        duration = call.seconds
        if self.collective > start:
            duration = self._contended(duration, start)
        call.spent += duration
        self.compute = start + duration
        self._span("compute", action, start, self.compute)
        return True

    def _run_beside(self, action: Action, call: Call, start: float) -> None:
        """Perform a call on the collective stream."""
        if start > self.collective:
            self._busy_since = start
        end = self.collective = start + call.seconds
        self._last_shares = call.shares or self._last_shares
        ready = (end, self._last_shares, end - self._busy_since)
        for place in call.marks:
            self._ready[place.slot(action.instance, action.micro_batch)] = ready
        self._span("collective", action, start, end)

    def _contended(self, seconds: float, start: float) -> float:
        """Duration of a call that takes `seconds` where no collective runs beside it."""
        factor = self.pricer.compute_contention
        before = max(0.0, self._busy_since - start)
        beside = self.collective - start - before
        if seconds <= before:
            return seconds
        if (seconds - before) * factor <= beside:
            return before + (seconds - before) * factor
        return seconds + beside - beside / factor

    def _when(self, slot: Slot) -> Ready | None:
        """When a slot is ready; None if that depends on a send not issued yet."""
        if slot in self._expected:
            identity = self._expected[slot]
            if identity not in self.exchange.arrivals:
                name, instance, micro_batch = slot
                self._blocked = (
                    f"{name} (instance {instance}, micro-batch {micro_batch}) from stage "
                    f"{identity[1]}"
                )
                return None
            end, seconds = self.exchange.arrivals.pop(identity)
            del self._expected[slot]
            self._ready[slot] = (end, SENDING, seconds)
        return self._ready.get(slot, NOW)

    def _join(self, call: Call, start: float) -> float | None:
        """When all stages of a call's groups are there; None while one is not."""
        latest, missing = start, ""
        for group in call.joins:
            there = self.exchange.joined.setdefault((group, self._uses[group]), {})
            there[self.stage.stage] = start
            latest = max(latest, *there.values())
            if len(there) < self.exchange.participants[group]:
                missing = f"the other stages of group {group}; there: {sorted(there)}"
        if missing:
            self._blocked = missing
            return None
        for group in call.joins:
            self._uses[group] += 1
        return latest

    # --- transfers ------------------------------------------------------------------------------

    def _transfer(self, action: Action) -> bool:
        """Perform a FEED, RECV, SEND or WAIT; False if it needs what is not known yet."""
        here, peer = self.stage.stage, action.peer
        for name in action.slots:
            slot = (name, action.instance, action.micro_batch)
            if action.kind == "RECV":
                self._expected[slot] = (slot, peer, here)
            elif action.kind == "WAIT":
                self._wait_until(self._sent.pop((slot, peer)))
            elif action.kind == "SEND" and not self._send(action, slot):
                return False
        return True

    def _wait_until(self, end: float) -> None:
        if end > self.compute:
            self._exposed["send"] += end - self.compute
            self.compute = end

    def _send(self, action: Action, slot: Slot) -> bool:
        ready = self._when(slot)
        if ready is None:
            return False
        here, peer = self.stage.stage, action.peer
        start = max(self.compute, self._channels[peer], ready[0])
        end = start + self._transfer_seconds(slot[0], peer)
        self._channels[peer] = self._sent[slot, peer] = end
        self.exchange.arrivals[slot, here, peer] = (end, end - start)
        if self.exchange.spans is not None:
            self._span(f"send to {peer}", action, start, end)
            received = str(action._replace(kind="RECV", peer=here))
            self.exchange.spans.append(Span(peer, f"receive from {here}", received, start, end))
        return True

    def _transfer_seconds(self, name: str, peer: int) -> float:
        """Seconds to send a slot to a neighbour: those of the slowest pair of ranks."""
        if (name, peer) not in self._transfers:
            other = self.program.stages[peer]
            nbytes = other.channels[name].register.nbytes
            self._transfers[name, peer] = self.pricer.exchange_seconds(
                nbytes, self.stage.mesh.devices(), other.mesh.devices()
            )
        return self._transfers[name, peer]

    # --- where the time goes ----------------------------------------------------------------------

    def _expose(self, seconds: float, cause: Ready) -> None:
        """Computing waited: at last for `cause`, and before that began for other stages."""
        _, shares, limit = cause
        direct = min(seconds, limit)
        for kind, share in shares:
            self._exposed[kind] += direct * share
        self._exposed["bubble"] += seconds - direct

    def spent_until(self, makespan: float) -> dict[str, float]:
        """Seconds by kind, from the start of the step to `makespan`."""
        end = self.end
        if self.collective > self.compute:
            busy = (self.collective, self._last_shares, self.collective - self._busy_since)
            self._expose(self.collective - self.compute, busy)
            self.compute = self.collective
        self._wait_until(end)
        spent = self._exposed
        spent["bubble"] += makespan - end
        for call in self.calls.values():
            for kind, share in call.shares:
                spent[kind] += call.spent * share
        return spent

    def _span(self, stream: str, action: Action, start: float, end: float) -> None:
        if self.exchange.spans is not None:
            self.exchange.spans.append(Span(self.stage.stage, stream, str(action), start, end))


NOW: Ready = (0.0, (), inf)
"""Of a slot that computing fills itself: ready before anything that reads it."""
