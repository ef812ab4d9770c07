"""Can all stages' lists of actions be performed together?

What they exchange must match, and the union of their issue orders have no cycle. One representative
per stage suffices, as all ranks of a stage perform the same list. The order is that of the runtime:
a receive and a wait block the stage, a send does not, as it sits on a stream of its own, one per
neighbour; a transfer happens once both sides are there (rendezvous). With blocking sends plain 1F1B
would be a cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from autoplan.errors import CheckError
from autoplan.ir.program import COLLECTIVES, Action, Program, Register, Segment, Slot, StageProgram
from autoplan.lower.check_stage import StageFacts, Transfer

Identity = tuple[Slot, int, int]


def check_transfers(program: Program, facts: Sequence[StageFacts]) -> None:
    """Every SEND has its RECV, of the same type, between stages of equally many ranks.

    Raises:
        CheckError: names both sides.
    """
    sends = _by_identity(t for stage in facts for t in stage.sends)
    receives = _by_identity(t for stage in facts for t in stage.receives)
    for identity in {**sends, **receives}:
        _, source, target = identity
        send, receive = sends.get(identity), receives.get(identity)
        if send is None or receive is None:
            known, missing = (send, "received") if send else (receive, "sent")
            side = source if send else target
            assert known is not None
            where = _where(program.stages[side], known.index)
            raise CheckError(f"{where}: {_text(identity)} is never {missing}")
        places = [
            _where(program.stages[stage], transfer.index)
            for stage, transfer in ((source, send), (target, receive))
        ]
        if send.register[1:3] != receive.register[1:3]:
            types = send.register[1:3], receive.register[1:3]
            raise CheckError(f"{places[0]} sends {types[0]}, {places[1]} expects {types[1]}")
        sizes = [program.stages[stage].mesh.size for stage in (source, target)]
        if sizes[0] != sizes[1]:
            raise CheckError(f"{places[0]} on {sizes[0]} ranks, {places[1]} on {sizes[1]}")


def _by_identity(transfers: Iterator[Transfer]) -> dict[Identity, Transfer]:
    table: dict[Identity, Transfer] = {}
    for transfer in transfers:
        if transfer.identity in table:
            raise CheckError(f"{_text(transfer.identity)} is sent or received twice")
        table[transfer.identity] = transfer
    return table


def check_acyclic(program: Program, facts: Sequence[StageFacts]) -> None:
    """The issue orders of all stages together have no cycle.

    Complexity: linear in actions (Kahn 1962).

    Raises:
        CheckError: says of every stage that cannot go on what it waits for.
    """
    order = _Order(program, facts)
    order.connect()
    order.sort()


class _Order:
    """The graph: a node per action (it is done), per transfer, and per joint collective."""

    def __init__(self, program: Program, facts: Sequence[StageFacts]) -> None:
        self.program, self.facts = program, facts
        self.first: list[int] = []
        self.nodes = 0
        for stage in program.stages:
            self.first.append(self.nodes)
            self.nodes += len(stage.actions)
        self.after: dict[int, list[int]] = defaultdict(list)
        self.waits_for: dict[int, str] = {}

    def connect(self) -> None:
        for index, stage in enumerate(self.program.stages):
            begin = self.first[index]
            for node in range(begin + 1, begin + len(stage.actions)):
                self.after[node - 1].append(node)
        self._connect_transfers()
        self._connect_groups()

    def _add(self) -> int:
        self.nodes += 1
        return self.nodes - 1

    def _before(self, stage: int, index: int, node: int) -> None:
        """`node` needs all that the stage issues before its action `index`."""
        if index > 0:
            self.after[self.first[stage] + index - 1].append(node)

    def _connect_transfers(self) -> None:
        receives = {t.identity: t.index for stage in self.facts for t in stage.receives}
        for stage in self.facts:
            last: dict[int, int] = {}
            for send in stage.sends:
                _, source, target = send.identity
                transfer = self._add()
                self.after[self.first[source] + send.index].append(transfer)
                received = receives[send.identity]
                self._before(target, received, transfer)
                self.after[transfer].append(self.first[target] + received)
                waited = stage.waits[send.identity]
                self.after[transfer].append(self.first[source] + waited)
                if target in last:
                    self.after[last[target]].append(transfer)
                last[target] = transfer
                text = _text(send.identity)
                self.waits_for[self.first[target] + received] = text
                self.waits_for[self.first[source] + waited] = f"stage {target} to take {text}"

    def _connect_groups(self) -> None:
        """The k-th use of a group by each of its stages is one node."""
        joints: dict[tuple[str, int], int] = {}
        for index, stage in enumerate(self.program.stages):
            seen: dict[str, int] = defaultdict(int)
            uses = {key: tuple(group_uses(part)) for key, part in stage.segments.items()}
            for place, action in enumerate(stage.actions):
                node = self.first[index] + place
                previous = -1
                for group, _ in uses.get(action.segment, ()):
                    key = (group, seen[group])
                    seen[group] += 1
                    if key not in joints:
                        joints[key] = self._add()
                    joint = joints[key]
                    self._before(index, place, joint)
                    if previous >= 0:
                        self.after[previous].append(joint)
                    self.after[joint].append(node)
                    previous = joint
                    self.waits_for[node] = f"the others of group {group}"

    def sort(self) -> None:
        missing = [0] * self.nodes
        for successors in self.after.values():
            for node in successors:
                missing[node] += 1
        ready = [node for node in range(self.nodes) if not missing[node]]
        for node in ready:
            for successor in self.after.get(node, ()):
                missing[successor] -= 1
                if not missing[successor]:
                    ready.append(successor)
        if len(ready) < self.nodes:
            raise CheckError(
                "\n".join(["deadlock: the stages wait for each other", *self._stuck(missing)])
            )

    def _stuck(self, missing: Sequence[int]) -> Iterator[str]:
        for index, stage in enumerate(self.program.stages):
            begin = self.first[index]
            for place in range(len(stage.actions)):
                if missing[begin + place]:
                    what = self.waits_for.get(begin + place, "its operands")
                    yield f"  {_where(stage, place)}: waits for {what}"
                    break


def check_groups(program: Program) -> None:
    """Stages that share a group use it equally often, for the same thing each time.

    Raises:
        CheckError: names both sides.
    """
    known: dict[str, tuple[StageProgram, list[tuple[Action, object]]]] = {}
    for stage in program.stages:
        uses = _uses_by_group(program, stage)
        for group, here in uses.items():
            other, there = known.setdefault(group, (stage, here))
            if [signature for _, signature in here] != [signature for _, signature in there]:
                raise CheckError(
                    f"group {group}: {_listed(other, there)}, but {_listed(stage, here)}"
                )


def _uses_by_group(program: Program, stage: StageProgram) -> dict[str, list[tuple[Action, object]]]:
    """Every group with ranks of the stage -> the calls that use it, and for what."""
    devices = set(stage.mesh.devices())
    uses: dict[str, list[tuple[Action, object]]] = {
        group: []
        for group, parts in program.groups.items()
        if any(devices.intersection(part) for part in parts)
    }
    joins = {key: tuple(group_uses(part)) for key, part in stage.segments.items()}
    for action in stage.actions:
        for group, signature in joins.get(action.segment, ()):
            uses[group].append((action, signature))
    return uses


def _listed(stage: StageProgram, uses: Sequence[tuple[Action, object]]) -> str:
    calls = ", ".join(str(action) for action, _ in uses) or "nothing"
    return f"stage {stage.stage} joins it in {calls}"


def group_uses(segment: Segment) -> Iterator[tuple[str, object]]:
    """(named group, what is exchanged) of each collective over one, in order."""
    for instr in segment.code:
        group = instr.attr("axes") if instr.op in COLLECTIVES else None
        if isinstance(group, str):
            types = tuple(_shape(segment.registers[register]) for register in instr.ins)
            yield group, (instr.op, instr.attr("reduction"), types)


def _shape(register: Register) -> tuple[tuple[int, ...], str]:
    return register.shape, register.dtype


def _where(stage: StageProgram, index: int) -> str:
    return f"stage {stage.stage}, action {index}, {stage.actions[index]}"


def _text(identity: Identity) -> str:
    (name, instance, micro_batch), source, target = identity
    return (
        f"{name} (instance {instance}, micro-batch {micro_batch}) from stage {source} to {target}"
    )
