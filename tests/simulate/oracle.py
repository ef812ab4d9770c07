"""A slow, obvious simulator: the longest path through all that must precede an action.

It knows the rules of `simulate.engine` as edges, from every slot and every stream; no contention.
"""

from __future__ import annotations

import networkx

from autoplan.ir.program import Action, Program, Slot, StageProgram
from tests.simulate.prices import Prices

Node = tuple[int, int]
"""(stage, index of the action)."""


def ends(program: Program, prices: Prices) -> dict[Node, float]:
    """When each action ends that takes or waits for time."""
    paths = _Paths(prices)
    for stage in program.stages:
        paths.add(stage)
    paths.connect_stages()
    result: dict[Node, float] = {}
    for node in networkx.topological_sort(paths.graph):
        start = max((result[before] for before in paths.graph.predecessors(node)), default=0.0)
        result[node] = start + paths.seconds[node]
    return result


class _Paths:
    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.graph = networkx.DiGraph()
        self.seconds: dict[Node, float] = {}
        self.sends: dict[object, Node] = {}
        self.received: list[tuple[object, Node]] = []
        self.joined: dict[tuple[str, int], list[Node]] = {}

    def add(self, stage: StageProgram) -> None:
        definers: dict[Slot, Node] = {}
        arriving: dict[Slot, object] = {}
        streams: dict[object, Node] = {}
        uses: dict[str, int] = {}
        for index, action in enumerate(stage.actions):
            slots = [(name, action.instance, action.micro_batch) for name in action.slots]
            if action.kind == "RECV":
                arriving[slots[0]] = (slots[0], action.peer, stage.stage)
            if action.kind in ("FEED", "FREE", "RECV"):
                continue
            node = (stage.stage, index)
            self.graph.add_node(node)
            self.seconds[node] = self._seconds(stage, action)
            self._follow_streams(node, self._stream(action), streams)
            reads, writes = _slots(stage, action, slots)
            for slot in reads:
                if slot in arriving:
                    self.received.append((arriving[slot], node))
                elif slot in definers:
                    self.graph.add_edge(definers[slot], node)
            definers.update(dict.fromkeys(writes, node))
            if action.kind == "SEND":
                self.sends[slots[0], stage.stage, action.peer] = node
            elif action.kind == "WAIT":
                self.graph.add_edge(self.sends[slots[0], stage.stage, action.peer], node)
            for group in _groups(stage, action):
                uses[group] = uses.get(group, 0) + 1
                self.joined.setdefault((group, uses[group]), []).append(node)

    def connect_stages(self) -> None:
        for identity, node in self.received:
            self.graph.add_edge(self.sends[identity], node)
        for members in self.joined.values():
            before = set().union(*(self.graph.predecessors(node) for node in members))
            self.graph.add_edges_from((one, node) for one in before for node in members)

    def _follow_streams(self, node: Node, stream: object, streams: dict[object, Node]) -> None:
        """After what its stream did before, and not before its issue."""
        for before in {"compute", stream}:
            if before in streams:
                self.graph.add_edge(streams[before], node)
        streams[stream] = node

    def _seconds(self, stage: StageProgram, action: Action) -> float:
        if action.kind == "SEND":
            return self.prices.transfer
        if action.kind == "WAIT" or not stage.segments[action.segment].code:
            return 0.0
        return self.prices.seconds(action.segment)

    def _stream(self, action: Action) -> object:
        if self.prices.overlaps and action.kind in ("GATHER", "REDUCE"):
            return "collective"
        if action.kind == "SEND":
            return "send", action.peer
        return "compute"


def _slots(stage: StageProgram, action: Action, slots: list[Slot]) -> tuple[list[Slot], list[Slot]]:
    """(slots read, slots filled)."""
    if not action.segment:
        return (slots, []) if action.kind == "SEND" else ([], [])
    formals = stage.segments[action.segment].formals
    places = [(f, f.slot(action.instance, action.micro_batch)) for f in formals]
    reads = [slot for f, slot in places if f.intent != "out"]
    return reads, [slot for f, slot in places if f.intent in ("out", "acc")]


def _groups(stage: StageProgram, action: Action) -> set[str]:
    if not action.segment:
        return set()
    axes = [i.attr("axes") for i in stage.segments[action.segment].code]
    return {group for group in axes if isinstance(group, str)}
