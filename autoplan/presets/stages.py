"""Stages: how layers lie on stages and their chunks, and which of them are computed again.

With `vpp` chunks a stage there are pp x vpp virtual stages: chunk c of stage s is number c pp + s.
`layers_per_stage` lists the layers of each, in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoplan.errors import Problem
from autoplan.ir.graph import Graph, kind_of
from autoplan.ir.machine import Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Run
from autoplan.pipeline import rounds
from autoplan.presets.legal import Case, value_set
from autoplan.presets.pins import Pins


def spread_layers(layers: int, stages: int, last: bool = False) -> tuple[int, ...]:
    """Layers per stage as even as can be.

    A remainder goes to the first stages, since the last one has the head; or to the last stages,
    as is the habit `remainder_last` of some stacks.
    """
    base, extra = divmod(layers, stages)
    spread = tuple(base + (i < extra) for i in range(stages))
    return spread[::-1] if last else spread


def balanced_by_parameters(config: DecoderConfig, stages: int) -> tuple[int, ...]:
    """Layers per stage where weights are spread evenly and the head counts as one more block.

    A stage goes on until it holds its share of what all stages up to it hold, so early stages are
    the larger ones. Source: nanotron, `PipelineEngine` block placement by compute cost
    (4 · heads · d · m + 3 · m · f per layer, v · m for the head); published peaks and step times
    say that a stage which holds its share exactly is full.
    """
    layer = 4 * config.heads * config.head_dim * config.hidden + 3 * config.hidden * config.ffn
    head = config.vocab * config.hidden
    share = (config.layers * layer + head) / stages
    counts, stage, held = [0] * stages, 0, 0
    for _ in range(config.layers):
        counts[stage] += 1
        held += layer
        if held >= (stage + 1) * share and stage + 1 < stages:
            stage += 1
    for empty in range(1, stages - 1):
        if not counts[empty]:  # every stage needs a block; the last one has the head
            fullest = max(range(empty), key=lambda i: (counts[i], i))
            counts[fullest] -= 1
            counts[empty] += 1
    return tuple(counts)


def spread_with_ends(layers: int, stages: int) -> tuple[int, ...]:
    """Layers per stage as even as can be where the embedding, and the head, stand for one each.

    A remainder goes to the first stages; a stage that would have no layer keeps one.
    """
    if stages == 1:
        return (layers,)
    counts = list(spread_layers(layers + 2, stages))
    counts[0], counts[-1] = counts[0] - 1, counts[-1] - 1
    for empty in (0, stages - 1):
        if counts[empty] < 0 or (counts[empty] == 0 and stages > layers):
            return spread_layers(layers, stages)
    return tuple(counts)


def settled_layers(
    values: Mapping[str, object], config: DecoderConfig, parts: tuple[int, int], stack: Stack
) -> tuple[tuple[int, ...], list[Problem]]:
    """Layers of every virtual stage, and what is wrong with them.

    Args:
        values: pins, filled in.
        config: the model.
        parts: stages, and chunks of each.
        stack: whose habits hold where nothing is pinned.
    """
    stages, chunks = parts
    layers, count = config.layers, stages * chunks
    text = "stages" if chunks == 1 else "virtual stages"
    given = values.get("layers_per_stage")
    if not isinstance(given, tuple):
        problems = []
        if stages > layers:
            problems.append(Problem("--pin", "pp", str(stages), f"at most {layers} layers"))
        elif count > layers:
            allowed = f"at most {layers // stages}, of {layers} layers on {stages} stages"
            problems.append(Problem("--pin", "vpp", str(chunks), allowed))
        if "balance_by_parameters" in stack.habits and not problems:
            return balanced_by_parameters(config, count), problems
        if "ends_count" in stack.habits and not problems:
            return spread_with_ends(layers, count), problems
        return spread_layers(layers, count, "remainder_last" in stack.habits), problems
    if len(given) == count and sum(given) == layers:
        return given, []
    found = f"{len(given)} {text} of {sum(given)} layers"
    allowed = f"{count} {text} ({'pp' if chunks == 1 else 'pp x vpp'}) of {layers} layers"
    return given, [Problem("--pin", "layers_per_stage", found, allowed)]


def settled_schedule(values: Mapping[str, object]) -> str:
    """The schedule family: several chunks are interleaved, and one chunk interleaved is 1F1B."""
    if values.get("vpp", 1) != 1:
        return "interleaved"
    family = str(values.get("schedule", "1f1b"))
    return "1f1b" if family == "interleaved" else family


def chunk_problems(case: Case, pins: Pins, stack: Stack) -> list[Problem]:
    """What keeps several chunks from being scheduled."""
    chunks, stages = case.degree("vpp"), case.degree("pp")
    if chunks == 1:
        return []
    problems = []
    pinned = pins["schedule"].single if "schedule" in pins else "interleaved"
    if pinned != "interleaved":
        allowed = f"interleaved, with {chunks} chunks a stage (vpp)"
        problems.append(Problem("--pin", "schedule", str(pinned), allowed))
    families = stack.restricts.get("schedule", ("interleaved",))
    if "interleaved" not in families:
        allowed = f"1 on stack {stack.name}, whose schedules are {', '.join(map(str, families))}"
        problems.append(Problem("--pin", "vpp", str(chunks), allowed))
    if stages == 1:
        allowed = "1 with pp=1: chunks take turns between stages"
        problems.append(Problem("--pin", "vpp", str(chunks), allowed))
    else:
        problems += _turn_problems(case, stages)
    return problems


def _turn_problems(case: Case, stages: int) -> list[Problem]:
    """Do micro-batches divide into equal turns of about as many as there are stages?"""
    batch, micro = case.workload.global_batch_size, case.degree("micro_batch")
    replicas = case.degree("dp")
    count, rest = divmod(batch, replicas * micro)
    if rest or count % rounds(stages, count) == 0:
        return []
    found = f"{micro}, so {count} micro-batches"
    each = [n for n in range(1, batch + 1) if batch % (replicas * n) == 0]
    counts = {n: batch // (replicas * n) for n in each}
    legal = [n for n, count in counts.items() if count % rounds(stages, count) == 0]
    allowed = f"{rounds(stages, count)} equal turns over {stages} stages"
    allowed += f" with vpp={case.degree('vpp')}"
    allowed += f": micro_batch in {value_set(legal)}" if legal else ""
    hint = "" if legal else f"a global batch that is a multiple of {replicas * micro * stages}"
    return [Problem("--pin", "micro_batch", found, allowed, hint)]


def alternates(stack: Stack) -> bool:
    """Whether a stack's selective recompute is that of every second layer.

    Elsewhere it is that of attention's scores, as in Megatron-LM: see `notes`.
    """
    return "selective_alternate" in stack.habits


def settled_recompute(values: Mapping[str, object], stack: Stack) -> str:
    """`none`, `full`, or `selective` for every second layer of a stage.

    Source: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer
    models", section 5: selective recomputation computes attention's scores and their softmax again,
    so that they need not be kept. Our attention keeps none in the first place, so nothing is left
    to compute again.
    """
    word = str(values.get("recompute", "none"))
    return "none" if word == "selective" and not alternates(stack) else word


def notes(pins: Pins, stack: Stack) -> tuple[str, ...]:
    """What pins come to under another name, for people."""
    values = {**stack.defaults, **{key: pin.single for key, pin in pins.items()}}
    found = []
    if values.get("recompute") == "selective" and not alternates(stack):
        found.append("recompute=selective is none: attention keeps no scores")
    if values.get("schedule") == "interleaved" and values.get("vpp", 1) == 1:
        found.append("schedule=interleaved is 1f1b: one chunk a stage (vpp)")
    return tuple(found)


def stage_runs(
    graph: Graph, layers: Sequence[int], stages: int, recompute: str
) -> list[tuple[Run, ...]]:
    """Runs of each stage: embedding with the first layers, head with the last; neighbours merged.

    Args:
        graph: training step.
        layers: of every virtual stage.
        stages: how many there are.
        recompute: `none`, `full`, or `selective`: the second, fourth, ... layer that a stage holds.

    Source: torchtitan's `selective` activation checkpointing with an integer option counts the
    layers of a process in this way.
    """
    blocks = [instance.block for instance in graph.instances]
    table: list[list[Run]] = [[] for _ in range(stages)]
    held, start = [0] * stages, 1
    for number, count in enumerate(layers):
        chunk, stage = divmod(number, stages)
        names = blocks[start : start + count]
        start += count
        if number == 0:
            names = [blocks[0], *names]
        if number == len(layers) - 1:
            names = [*names, blocks[-1]]
        for name in names:
            again = False
            if kind_of(name) == "layer":
                held[stage] += 1
                again = recompute == "full" or (recompute == "selective" and held[stage] % 2 == 0)
            _append(table[stage], Run(name, 1, again, chunk))
    return [tuple(runs) for runs in table]


def _append(runs: list[Run], run: Run) -> None:
    if runs and replace(runs[-1], count=1) == run:
        runs[-1] = replace(run, count=runs[-1].count + 1)
    else:
        runs.append(run)
