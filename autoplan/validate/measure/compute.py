"""Which device explains the measured steps? Its constants, fitted with the pricer's own formulas.

The unknowns are the attributes of `ir.machine.Device` that a formula of `cost` reads; what is
minimised is how far each part of each measured step (matrix products, attention, streaming) is from
its price, weighted by the part's share of the step. No formula stands here: the pricer prices every
candidate, and a pattern search walks to the best one. A change in `cost` changes the fit.

Peaks are what a data sheet says, or else the best rate seen, so that efficiencies are shares of it.

Source of the search: Hooke & Jeeves 1961, "Direct search solution of numerical and statistical
problems".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import median
from typing import Any

from autoplan.cost import Processor
from autoplan.ir.machine import Device, Evidence, Hardware, Stack
from autoplan.ops import Work
from autoplan.validate.measure.fit import fit_line, relative, typical_error

PRODUCTS = ("matmul", "optimizer_matmul")
SHARES = ("gemm_efficiency", "attention_efficiency", "memory_efficiency")
AMOUNTS = ("gemm_half_flops", "launch")
FIRST_STEP, LAST_STEP = 2.0, 1.005
"""Factors of the pattern search."""
LEAST = {"gemm_half_flops": 1e3, "launch": 1e-8}
"""Below these an amount makes no difference."""
LARGEST = {"gemm_half_flops": 1e13, "launch": 1e-2}
LEAST_SHARE = 1e-3
NORMAL_DEVIATION = 1.4826
"""Sigma of a normal law over its median absolute deviation. Source: Rousseeuw & Croux 1993."""
GOVERNED = {
    "gemm_efficiency": "matrix products",
    "gemm_half_flops": "matrix products",
    "attention_efficiency": "attention",
    "memory_efficiency": "streaming",
    "launch": "streaming",
}
"""Constant -> the part of a step that it governs."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One kind of instruction of a measured step.

    Attributes:
        step: name of the step.
        precision: of the step.
        family: operator family.
        work: what it does.
        dtype: of its products.
        count: how often it stands in the step.
        seconds: of one, by rank and repetition.
    """

    step: str
    precision: str
    family: str
    work: Work
    dtype: str
    count: int
    seconds: tuple[float, ...]

    @property
    def typical(self) -> float:
        """Median seconds of one."""
        return median(self.seconds)

    @property
    def part(self) -> str:
        """The part of a step that it belongs to."""
        if self.work.kind in PRODUCTS:
            return "matrix products"
        return "attention" if self.work.kind.startswith("attention") else "streaming"


def pooled(readings: Iterable[Reading]) -> tuple[Reading, ...]:
    """Readings of the same step at several times as one, in order of the first."""
    table: dict[tuple[object, ...], Reading] = {}
    for one in readings:
        key = (one.step, one.precision, one.family, one.work, one.dtype)
        known = table.get(key)
        table[key] = replace(known, seconds=known.seconds + one.seconds) if known else one
    return tuple(table.values())


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a measured step beside its price.

    Attributes:
        step, precision, part: which.
        count: instructions.
        measured, predicted: seconds of all of them.
        share: of the step's measured time.
    """

    step: str
    precision: str
    part: str
    count: int
    measured: float
    predicted: float
    share: float

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class FamilyLine:
    """What an operator family takes by itself: seconds + size / rate.

    Attributes:
        precision, family, kind: whose.
        unit: what its size is counted in: `FLOP` of what computes, else `B`.
        seconds: of the smallest.
        rate: units per second; None where size makes no difference.
        error: median absolute relative error.
    """

    precision: str
    family: str
    kind: str
    unit: str
    seconds: float
    rate: float | None
    error: float


@dataclass(frozen=True)
class DeviceFit:
    """A fitted device.

    Attributes:
        device: with every measured constant replaced.
        evidence: of these.
        parts: of every step, beside the prices that the device gives.
    """

    device: Device
    evidence: Mapping[str, Evidence]
    parts: tuple[Part, ...]


def fit_device(
    readings: Sequence[Reading], hardware: Hardware, stack: Stack, source: str
) -> DeviceFit:
    """The device that explains the readings best.

    Args:
        readings: of one rank's steps, those in the usual precision first; seconds that no sharing
            of cores has stretched. Other precisions give their peaks, and are priced to compare.
        hardware: one device, the start; peaks and bandwidth that its data sheet knows are kept.
        stack: whose kernels were measured.
        source: how, for the evidence.
    """
    device, found = _seen(readings, hardware)
    usual = [reading for reading in readings if reading.precision == readings[0].precision]

    def loss(candidate: Device) -> float:
        parts = price_parts(usual, replace(hardware, device=candidate), stack)
        return sum(part.share * abs(part.error) for part in parts)

    fitted = _search(device, loss)
    parts = tuple(price_parts(readings, replace(hardware, device=fitted), stack))
    evidence = {
        f"device.{path}": Evidence("measured", f"best rate seen in {source}", spread)
        for path, spread in found.items()
    }
    for name, part in GOVERNED.items():
        mine = [p for p in parts if p.part == part and p.precision == usual[0].precision]
        spread = _spread(mine)
        evidence[f"device.{name}"] = Evidence("measured", f"fit to {source}", spread)
    return DeviceFit(fitted, evidence, parts)


def _seen(readings: Sequence[Reading], hardware: Hardware) -> tuple[Device, dict[str, float]]:
    """The device with the best rates seen, but where its data sheet says more; their spreads."""
    device, found = hardware.device, {}
    peaks = dict(device.peak_flops)
    mfu = next((d for d, peak in peaks.items() if peak == device.peak_flops_for_mfu), "")
    products = [reading for reading in readings if reading.work.kind in PRODUCTS]
    for dtype in sorted({reading.dtype for reading in products}):
        path = f"peak_flops.{dtype}"
        if _from_sheet(hardware, path):
            continue
        rates = [(r.work.flops / r.typical, r) for r in products if r.dtype == dtype]
        peaks[dtype], best = max(rates, key=lambda pair: pair[0])
        found[path] = scatter(best.seconds)
        if dtype == mfu:
            found["peak_flops_for_mfu"] = found[path]
    bandwidth = device.memory_bandwidth
    if not _from_sheet(hardware, "memory_bandwidth"):
        streams = [(r.work.nbytes / r.typical, r) for r in readings if r.part == "streaming"]
        bandwidth, best = max(streams, key=lambda pair: pair[0])
        found["memory_bandwidth"] = scatter(best.seconds)
    count_against = peaks[mfu] if "peak_flops_for_mfu" in found else device.peak_flops_for_mfu
    return replace(
        device, peak_flops=peaks, peak_flops_for_mfu=count_against, memory_bandwidth=bandwidth
    ), found


def _from_sheet(hardware: Hardware, path: str) -> bool:
    origin = hardware.evidence.get(f"device.{path}")
    return origin is not None and origin.kind == "datasheet"


def price_parts(
    readings: Sequence[Reading], hardware: Hardware, stack: Stack
) -> Iterator[Part]:  # fmt: skip
    """Every part of every step, measured and priced.

    Args:
        readings: of steps.
        hardware: one device.
        stack: whose kernels run.
    """
    prices = Processor(hardware, stack).table_seconds(
        [reading.work for reading in readings], [reading.dtype for reading in readings]
    )
    steps: dict[tuple[str, str], float] = {}
    table: dict[tuple[str, str, str], tuple[int, float, float]] = {}
    for reading, price in zip(readings, prices.tolist(), strict=True):
        key = (reading.step, reading.precision, reading.part)
        taken = reading.count * reading.typical
        count, measured, predicted = table.get(key, (0, 0.0, 0.0))
        table[key] = (
            count + reading.count, measured + taken, predicted + reading.count * price
        )  # fmt: skip
        steps[key[:2]] = steps.get(key[:2], 0.0) + taken
    for key, (count, measured, predicted) in table.items():
        yield Part(*key, count, measured, predicted, measured / steps[key[:2]])


def family_lines(readings: Sequence[Reading]) -> Iterator[FamilyLine]:
    """A line for every family and precision: what no constant of a device says."""
    table: dict[tuple[str, str, str], list[Reading]] = {}
    for reading in readings:
        key = (reading.precision, reading.family, reading.work.kind)
        table.setdefault(key, []).append(reading)
    for key, mine in table.items():
        computes = mine[0].part != "streaming"
        rows = [relative(1.0, r.work.flops if computes else r.work.nbytes, r.typical) for r in mine]
        line = fit_line(rows)
        rate = 1.0 / line.slope if line.slope else None
        unit = "FLOP" if computes else "B"
        yield FamilyLine(*key, unit, line.constant, rate, typical_error(line, rows))


def _search(start: Device, loss: Callable[[Device], float]) -> Device:
    """Pattern search: one constant at a time by a factor that shrinks when nothing helps."""
    best, least, factor = start, loss(start), FIRST_STEP
    while factor > LAST_STEP:
        improved = False
        for name in (*SHARES, *AMOUNTS):
            for step in (factor, 1 / factor):
                candidate = _moved(best, name, step)
                value = loss(candidate)
                if value < least:
                    best, least, improved = candidate, value, True
        if not improved:
            factor = sqrt(factor)
    return best


def _moved(device: Device, name: str, factor: float) -> Device:
    least, largest = LEAST.get(name, LEAST_SHARE), LARGEST.get(name, 1.0)
    value = min(largest, max(least, getattr(device, name) * factor))
    changes: dict[str, Any] = {name: value}
    return replace(device, **changes)


def _spread(parts: Sequence[Part]) -> float | None:
    """One-sigma factor of a price: root mean square of the log errors, by share of the step."""
    weight = sum(part.share for part in parts)
    if not weight:
        return None
    square = sum(part.share * log(part.predicted / part.measured) ** 2 for part in parts)
    return exp(sqrt(square / weight))


def scatter(seconds: Sequence[float]) -> float:
    """One-sigma factor of repeated measurements, from the median deviation of their logs."""
    logs = [log(value) for value in seconds]
    middle = median(logs)
    return exp(NORMAL_DEVIATION * median(abs(value - middle) for value in logs))
