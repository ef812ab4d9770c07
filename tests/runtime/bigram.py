"""A hand-written training step: a table of next-token logits, data split over two ranks."""

from __future__ import annotations

from autoplan.ir.graph import Block, Graph, Instance, Op, Tensor
from autoplan.ir.layout import Axis, B, Layout, Mesh, S
from autoplan.ir.program import (
    Action,
    Formal,
    Instr,
    Program,
    Register,
    Segment,
    Slot,
    SlotSpec,
    StageProgram,
)
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload
from autoplan.runtime.data import Shape, SyntheticBatches
from autoplan.runtime.session import Settings
from autoplan.runtime.verify import Trial
from tests.runtime.tiny import of, segment

V, SEQ, MICRO, SEQUENCES = 8, 6, 2, 4
HYPER = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
WORKLOAD = Workload(
    "train", SEQUENCES, SEQ, PRECISIONS["fp64"], Optimizer("sgd", HYPER, 1.0), seed=5
)
BATCHES = SyntheticBatches(Shape(SEQUENCES, SEQ, V), 5)


def _graph() -> Graph:
    tensors = [
        Tensor("ids", ("b", "s"), "feed", "index"),
        Tensor("targets", ("b", "s"), "feed", "index"),
        Tensor("count", (), "feed", "statistic"),
        Tensor("table", ("v", "n"), "parameter", "parameter"),
        Tensor("logits", ("b", "s", "n")),
        Tensor("stats", ("b", "s", "c"), dtype="statistic"),
        Tensor("loss", (), dtype="statistic"),
    ]
    forward = (
        Op("logits", "embedding", ("ids", "table"), ("logits",)),
        Op("stats", "xent_stats", ("logits", "targets"), ("stats",)),
        Op("loss", "xent_loss", ("stats", "targets", "count"), ("loss",)),
    )
    block = Block("bigram", {t.name: t for t in tensors}, forward, trainable=("table",))
    extent = {"s": SEQ, "v": V, "n": V, "c": 2}
    return Graph(
        "bigram", {"bigram": block}, (Instance("bigram", "model."),), extent,
        {"table": ("normal", 0.5)},
    )  # fmt: skip


GRAPH = _graph()
TRIAL = Trial(GRAPH, WORKLOAD, BATCHES)


def _train(first: bool) -> Segment:
    """Forward and backward of a micro-batch; loss and gradient add up over micro-batches."""
    ids, logits = Register("ids", (1, SEQ), "int64", "activations"), (1, SEQ, V)
    scalar = Register("scalar", (), "fp64", "activations")
    table = Register("table", (V, V), "fp64", "parameters")
    registers = [
        ids, ids, scalar, table, Register("logits", logits, "fp64", "logits"),
        Register("stats", (1, SEQ, 2), "fp64", "activations"), scalar,
        Register("d.logits", logits, "fp64", "logits"), table, scalar, table,
    ]  # fmt: skip
    whole = (("shard", ()),)
    more = () if first else (9,), () if first else (10,)
    code = [
        Instr("embedding", (0, 3), (4,), whole),
        Instr("xent_stats", (4, 1), (5,), whole),
        Instr("xent_loss", (5, 1, 2, *more[0]), (6,), (), more[0]),
        Instr("xent_grad", (4, 5, 1, 2), (7,), whole),
        Instr("embedding_grad", (0, 7, *more[1]), (8,), (*whole, ("rows", V)), more[1]),
    ]
    formals = [
        Formal(0, "in", "ids", None, per_micro_batch=True),
        Formal(1, "in", "targets", None, per_micro_batch=True),
        of("count", 2),
        Formal(3, "in", "table", 0, per_micro_batch=False),
    ]
    if first:
        formals += [of("loss", 6, "out"), of("d.table", 8, "out")]
    else:
        formals += [of("loss", 9, "acc", 6), of("d.table", 10, "acc", 8)]
    return segment("F.first" if first else "F", formals, registers, code)


def _reduce() -> Segment:
    scalar, table = Register("l", (), "fp64", "x"), Register("g", (V, V), "fp64", "gradients")
    attrs = (("axes", (0,)), ("reduction", "sum"))
    code = [Instr("all_reduce", (0, 1), (2, 3), attrs)]
    formals = [
        of("loss", 0, "move"), of("d.table", 1, "move"), of("loss", 2, "out"),
        of("r.table", 3, "out"),
    ]  # fmt: skip
    return segment("REDUCE", formals, [scalar, table, scalar, table], code)


def _update() -> tuple[Segment, Segment]:
    scalar, table = Register("s", (), "fp64", "x"), Register("t", (V, V), "fp64", "x")
    norm = segment(
        "NORM", [of("r.table", 0), of("factor", 3, "out")], [table, scalar, scalar, scalar],
        [
            Instr("square_sum", (0,), (1,), (("owner", ((0,),)), ("accumulates", False))),
            Instr("all_reduce", (1,), (2,), (("axes", "world"), ("reduction", "sum"))),
            Instr("clip_factor", (2,), (3,), (("clip", 1.0),)),
        ],
    )  # fmt: skip
    formals = [
        Formal(0, "acc", "table", 0, per_micro_batch=False, returns=4), of("r.table", 1, "move"),
        of("factor", 2, "move"),
        Formal(3, "acc", "table.momentum", 0, per_micro_batch=False, returns=5),
    ]  # fmt: skip
    code = [Instr("sgd", (0, 1, 2, 3), (4, 5), tuple(HYPER.items()), (0, 3))]
    return norm, segment("STEP", formals, [table, table, scalar, table, table, table], code)


def _spec(slot: Slot, dims: tuple[str, ...], layout: Layout, dtype: str, *source: str) -> SlotSpec:
    sizes = {"b": 1, "s": SEQ, "v": V, "n": V}
    register = Register(slot[0], tuple(sizes[d] for d in dims), dtype, "x")
    return SlotSpec(slot, register, layout, dims, source)


def bigram() -> Program:
    """Two micro-batches of two sequences, one per rank."""
    fed, name = ("ids", "targets"), "model.table"
    actions = []
    for micro_batch in range(MICRO):
        actions += [
            Action("FEED", micro_batch=micro_batch, slots=fed),
            Action("F", "F" if micro_batch else "F.first", 0, micro_batch),
            Action("FREE", micro_batch=micro_batch, slots=fed),
        ]
    actions += [Action("REDUCE", "REDUCE"), Action("NORM", "NORM"), Action("STEP", "STEP", 0)]
    segments = [_train(first=True), _train(first=False), _reduce(), *_update()]
    matrix = ("v", "n")
    resident = (
        _spec(("table", 0, -1), matrix, (B,), "fp64", "parameter", name),
        _spec(("table.momentum", 0, -1), matrix, (B,), "fp64", "state", name, "momentum"),
        _spec(("count", -1, -1), (), (B,), "fp64", "feed", "count"),
    )
    feeds = {n: _spec((n, -1, -1), ("b", "s"), (S("b"),), "int64", "feed", n) for n in fed}
    gradient = _spec(("r.table", -1, -1), matrix, (B,), "fp64", "gradient", name)
    here = StageProgram(
        0, Mesh((Axis("gpu", 2, 1),)), {s.key: s for s in segments}, tuple(actions), resident,
        feeds, {}, {name: gradient},
    )  # fmt: skip
    extent = {**GRAPH.extent, "b": SEQUENCES // MICRO}
    return Program((here,), MICRO, SEQUENCES // MICRO, SEQ, {"world": ((0, 1),)}, extent)


SETTINGS = Settings(steps=3, seed=5, batches=BATCHES)
