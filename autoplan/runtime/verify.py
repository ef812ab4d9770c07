"""Does a run compute what the unsharded model computes?

For each step a reference starts from the run's own parameters and optimizer state before that step
(AdamW's g / |g| would amplify rounding from step to step in fp32). Loss and every gradient are
compared, and the new parameters with the reference optimizer applied to the *run's* reduced
gradients. In fp64 the parameters after the last step are also compared with a reference that ran
freely from the first, unless the optimizer makes large steps of vanishing gradients. In 16-bit
precisions only the loss is compared, with an fp32 reference, and with a loss scale which steps were
skipped and what became of the scale.

Error of a tensor = max|a - b| / max(max|b|, 1e-3 G), G the largest magnitude of its kind in the
step. `assemble` makes whole tensors of pieces and finds replicas that differ in any bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod, sqrt

import torch
from torch import Tensor

from autoplan.errors import CheckError, MismatchError
from autoplan.ir.graph import Graph
from autoplan.ir.layout import Mesh
from autoplan.ir.program import SlotSpec
from autoplan.ir.workload import Workload
from autoplan.runtime.data import Batches
from autoplan.runtime.reference import (
    ReferenceBatch,
    reference_step,
)
from autoplan.runtime.reference_optimizer import (
    Scale,
    States,
    Values,
    forms,
    reference_scale,
    reference_update,
)
from autoplan.runtime.shards import local_slices

FP64_LIMIT = 1e-9
FP32_FACTOR = 32 * 2.0**-24
"""Times sqrt(K), K the longest sum on a gradient's path: rounding errors of K terms grow so.
Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 2.8; measured
gradients stay a factor of 20 below it."""
LOSS_LIMIT_16_BIT = 0.02
SMALL = 1e-3
"""A tensor is judged against at least this share of the largest of its kind."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two tensors that should be alike.

    Attributes:
        what: `gradient of layers.0.wq in step 1`, ...
        error: relative, infinite where a value is missing or not finite.
        index: of the first element beyond the limit, or () if none is or if the tensor is a scalar.
        found, expected: the values there, or of the largest deviation.
    """

    what: str
    error: float
    index: tuple[int, ...] = ()
    found: float = 0.0
    expected: float = 0.0

    def __str__(self) -> str:
        place = f"{list(self.index)}" if self.index else ""
        return (
            f"{self.what}{place}: found {self.found:.9g}, expected {self.expected:.9g} "
            f"(error {self.error:.3g})"
        )


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a run did in one step: whole tensors by full name.

    Attributes:
        parameters, states: before the step.
        gradients: reduced, before clipping, of the trainable parameters.
        parameters_after: after the step.
        loss: mean over the valid tokens of the global batch.
        scales: of the loss, before and after the step; () where the precision has none.
    """

    parameters: Mapping[str, Tensor]
    states: States
    gradients: Mapping[str, Tensor]
    parameters_after: Mapping[str, Tensor]
    loss: float
    scales: tuple[Scale, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """What to verify.

    Attributes:
        graph: the training step's graph.
        workload: precision, optimizer, seed, batch.
        batches: the data that the run read.
        first_step: index of the first recorded step.
        sequences_at_once: of a reference pass, 0 for all; bounds its memory.
    """

    graph: Graph
    workload: Workload
    batches: Batches
    first_step: int = 0
    sequences_at_once: int = 0

    def batch(self, step: int) -> ReferenceBatch:
        """The reference's input in a step."""
        ids, targets, count = self.batches.batch(step)
        seed = self.workload.seed
        more = self.batches.more(step)
        return ReferenceBatch(ids, targets, count, step, seed, self.sequences_at_once, more)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a verification.

    Attributes:
        verified: every error is within its limit and all replicas are bit-equal.
        limit: of gradients and parameters; of the loss where only that is compared.
        max_loss_error, max_gradient_error, max_parameter_error: over all steps; 0 where not
            compared.
        worst: the largest difference of all.
        losses: (run, reference) per step.
        failures: every difference beyond its limit, in order of discovery.
        replicas_equal: no replica differed in a bit.
    """

    verified: bool
    limit: float
    max_loss_error: float
    max_gradient_error: float
    max_parameter_error: float
    worst: Difference | None
    losses: tuple[tuple[float, float], ...]
    failures: tuple[Difference, ...] = ()
    replicas_equal: bool = True

    def raise_if_failed(self) -> None:
        """Raise MismatchError with the first differences, unless verified."""
        if self.verified:
            return
        shown = [f"  {difference}" for difference in self.failures[:5]]
        more = len(self.failures) - len(shown)
        lines = [f"the run differs from the reference (limit {self.limit:.3g}):", *shown]
        raise MismatchError("\n".join(lines + ([f"  and {more} more"] if more else [])))


def longest_sum(graph: Graph, sequences: int) -> int:
    """K: the most terms that one sum adds up on the path of a loss or gradient."""
    tokens = sequences * graph.extent["s"]
    longest = tokens
    for block in graph.blocks.values():
        for op in block.forward:
            if op.family == "linear":
                weight = graph.shape(block.name, op.inputs[1])
                inner = prod(weight[len(weight) - op.attr("contract") :])
                longest = max(longest, inner, prod(weight) // inner)
    return longest


def tolerance(graph: Graph, workload: Workload) -> float:
    """The limit of the workload's precision; of the loss alone in 16 bits."""
    coarsest = workload.precision.coarsest
    if coarsest == "fp64":
        return FP64_LIMIT
    if coarsest == "fp32":
        return FP32_FACTOR * sqrt(longest_sum(graph, workload.global_batch_size))
    return LOSS_LIMIT_16_BIT


def compare(what: str, found: Tensor, expected: Tensor, scale: float, limit: float) -> Difference:
    """The error of one tensor and where it first exceeds the limit.

    Args:
        what: for people.
        found: of the run.
        expected: of the reference, same shape.
        scale: G, the largest magnitude among tensors of this kind.
        limit: of the error.
    """
    if found.shape != expected.shape:
        return Difference(
            f"{what}: shape {list(found.shape)}, not {list(expected.shape)}", torch.inf
        )
    a, b = found.double().view(-1), expected.double().view(-1)
    deviation = (a - b).abs().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    divisor = max(float(b.abs().max()), SMALL * scale) or 1.0
    error = float(deviation.max()) / divisor
    error = error if isfinite(error) else torch.inf
    bad = (deviation > limit * divisor) | (deviation == torch.inf)
    place = int(bad.nonzero()[0]) if bool(bad.any()) else int(deviation.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), found.shape))
    return Difference(what, error, index, float(a[place]), float(b[place]))


def _compare_all(
    what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor], limit: float
) -> Iterator[Difference]:
    """Compare tensors by name; what stands on one side alone differs infinitely."""
    scale = max((float(t.abs().max()) for t in expected.values()), default=0.0)
    for name in sorted({*found, *expected}):
        text = what.format(name)
        if name not in found or name not in expected:
            side = "reference" if name in found else "run"
            yield Difference(f"{text}: missing in the {side}", torch.inf)
        else:
            yield compare(text, found[name], expected[name], scale, limit)


@dataclass(slots=True)
class _Tally:
    """Collects differences."""

    limit: float
    losses: list[tuple[float, float]] = field(default_factory=list)
    kinds: dict[str, list[Difference]] = field(default_factory=dict)

    def loss(self, step: int, found: float, expected: float) -> None:
        self.losses.append((found, expected))
        a, b = (torch.tensor(value, dtype=torch.float64) for value in (found, expected))
        difference = compare(f"loss of step {step}", a, b, 0.0, self.limit)
        self.kinds.setdefault("loss", []).append(difference)

    def worst(self, *kinds: str) -> Difference | None:
        found = [d for kind in kinds or self.kinds for d in self.kinds.get(kind, ())]
        return max(found, key=lambda d: d.error, default=None)

    def over(self) -> list[Difference]:
        return [d for found in self.kinds.values() for d in found if not d.error <= self.limit]

    def verdict(self, unequal: Sequence[Difference]) -> Verdict:
        worst = {k: self.worst(k) for k in ("loss", "gradient", "parameter")}
        loss, gradient, parameter = (d.error if d else 0.0 for d in worst.values())
        failures = (*unequal, *self.over())
        return Verdict(
            not failures, self.limit, loss, gradient, parameter, self.worst(),
            tuple(self.losses), failures, not unequal,
        )  # fmt: skip


def verify(
    trial: Trial, records: Sequence[StepRecord], unequal: Sequence[Difference] = ()
) -> Verdict:
    """Compare a run with the reference.

    Args:
        trial: what was run.
        records: one per step, in order.
        unequal: replicas that `assemble` found to differ.
    """
    tally = _Tally(tolerance(trial.graph, trial.workload))
    if trial.workload.precision.coarsest == "16-bit":
        for offset, record in enumerate(records):
            _verify_loss(trial, trial.first_step + offset, record, tally)
        return tally.verdict(unequal)
    for offset, record in enumerate(records):
        _verify_step(trial, trial.first_step + offset, record, tally)
    # After a wrong step a free run says nothing new.
    free = trial.workload.precision.coarsest == "fp64" and trial.workload.optimizer.rule.continuous
    if free and len(records) > 1 and not tally.over():
        _verify_free_run(trial, records, tally)
    return tally.verdict(unequal)


def _verify_loss(trial: Trial, step: int, record: StepRecord, tally: _Tally) -> None:
    """16-bit precisions: the loss alone, against fp32."""
    wide = {name: value.float() for name, value in record.parameters.items()}
    loss, _ = reference_step(trial.graph, wide, trial.batch(step))
    tally.loss(step, record.loss, float(loss))
    if record.scales:
        tally.kinds.setdefault("loss scale", []).extend(_scale_differences(trial, step, record))


def _scale_differences(trial: Trial, step: int, record: StepRecord) -> Iterator[Difference]:
    """The scale after the step, and after a skipped one everything else, are what they must be."""
    before, after = record.scales
    expected = reference_scale(trial.workload.loss_scale, before, record.gradients)
    if after != expected:
        what = f"loss scale after step {step} ({after}, not {expected})"
        yield Difference(what, torch.inf, (), after.value, expected.value)
    if expected.taken == before.taken:
        for name, value in record.parameters.items():
            what = f"parameter {name} after skipped step {step}"
            difference = bit_difference(what, record.parameters_after[name], value)
            if difference:
                yield replace(difference, error=torch.inf)


def _verify_step(trial: Trial, step: int, record: StepRecord, tally: _Tally) -> None:
    loss, gradients = reference_step(trial.graph, record.parameters, trial.batch(step))
    tally.loss(step, record.loss, float(loss))
    tally.kinds.setdefault("gradient", []).extend(
        _compare_all(f"gradient of {{}} in step {step}", record.gradients, gradients, tally.limit)
    )
    known = {name: g for name, g in record.gradients.items() if name in record.states}
    after = reference_update(
        trial.workload.optimizer, forms(trial.graph), Values(record.parameters, record.states),
        known, step,
    )  # fmt: skip
    what = f"parameter {{}} after step {step}"
    tally.kinds.setdefault("parameter", []).extend(
        _compare_all(what, record.parameters_after, after.parameters, tally.limit)
    )


def _verify_free_run(trial: Trial, records: Sequence[StepRecord], tally: _Tally) -> None:
    """The parameters after the last step against a reference that never looked at the run's."""
    values, seen = Values(records[0].parameters, records[0].states), forms(trial.graph)
    for offset in range(len(records)):
        step = trial.first_step + offset
        _, gradients = reference_step(trial.graph, values.parameters, trial.batch(step))
        values = reference_update(trial.workload.optimizer, seen, values, gradients, step)
    what = f"parameter {{}} after {len(records)} free steps"
    tally.kinds["parameter"].extend(
        _compare_all(what, records[-1].parameters_after, values.parameters, tally.limit)
    )


_PATTERN = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def bit_difference(what: str, found: Tensor, expected: Tensor) -> Difference | None:
    """The first element in which two tensors of one shape and dtype differ in a bit, or None."""
    pattern = _PATTERN[found.element_size()]
    unlike = found.contiguous().view(pattern) != expected.contiguous().view(pattern)
    if not bool(unlike.any()):
        return None
    index = tuple(int(i) for i in unlike.nonzero()[0])
    a, b = float(found[index]), float(expected[index])
    return Difference(what, abs(a - b) / (abs(b) or 1.0), index, a, b)


def assemble(
    spec: SlotSpec,
    mesh: Mesh,
    pieces: Mapping[int, Tensor],
    extent: Mapping[str, int],
    unequal: list[Difference] | None = None,
) -> Tensor:
    """The whole tensor of one stage's pieces.

    Args:
        spec: dims and layout of the slot.
        mesh: of the stage.
        pieces: rank -> its piece.
        extent: global size of every dim.
        unequal: takes the replicas that differ in a bit; without it the first one is raised.

    Raises:
        MismatchError: two replicas differ and nobody collects them.
        CheckError: the layout is partial: its pieces have no whole until they are reduced.
    """
    name = "/".join(spec.source) or spec.slot[0]
    if any(placement.kind == "P" for placement in spec.layout):
        raise CheckError(f"{name} is partial and cannot be assembled")
    first = pieces[mesh.devices()[0]]
    whole = first.new_empty(tuple(extent[dim] for dim in spec.dims))
    owners: dict[tuple[int, ...], int] = {}
    for coordinate, rank in zip(mesh.coordinates(), mesh.devices(), strict=True):
        part = local_slices(spec.dims, spec.layout, mesh.sizes, coordinate, extent)
        owner = owners.setdefault(tuple(s.start for s in part), rank)
        if owner == rank:
            whole[part] = pieces[rank]
            continue
        what = f"{name}: replica of rank {rank} against rank {owner}"
        difference = bit_difference(what, pieces[rank], pieces[owner])
        if difference and unequal is None:
            raise MismatchError(f"replicas are not bit-equal: {difference}")
        if difference and unequal is not None:
            unequal.append(difference)
    return whole
