"""How long does a device compute? Seconds of `ops.Work`, one by one or as tables.

    busy    = max((flops + ramp) · padding(rows) / (peak[dtype] · efficiency), bytes / bandwidth)
    seconds = (busy + casting + kernels · launch) · slowdown,  0 for nothing

A product in a dtype of its own (fp8) casts its operands first, which streams:

    casting = cast bytes / bandwidth, whatever the stack: libraries have one kernel for it

A fused attention kernel is work like any other. Plain attention writes its scores to memory and
computes those behind the mask: its products run one after the other with the traffic between them,

    busy    = plain flops / (peak[dtype] · efficiency) + score_traffic · score bytes / bandwidth

Source: the roofline model (Williams, Waterman & Patterson 2009) with the affine ramp of small
products: efficiency · flops / (flops + half) reaches half of the efficiency at `half` FLOP.
Not modelled: waves of tiles over the cores (no effect visible in published training runs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import InputError, Problem
from autoplan.ir.machine import Hardware, Stack
from autoplan.ops import Work
from autoplan.ops.attention import (
    BACKWARD_PASSES,
    FORWARD_PASSES,
    FORWARD_PRODUCTS,
    PLAIN_BACKWARD_PRODUCTS,
)

FloatArray = NDArray[np.float64]
Number = TypeVar("Number", float, FloatArray)

TILE_ROWS = 16
"""Edge of the smallest tile of a matrix unit. Source: 16-row tiles of NVIDIA tensor cores (PTX ISA,
`mma.m16n8k16`) and of Intel AMX, 16 fp32 lanes of AVX-512."""
PADDING_ROWS = TILE_ROWS / 2
"""Rows that padding to whole tiles wastes on average: half a tile."""
ATTENTION = ("attention", "attention_grad")
TRAFFIC_FACTORS = {
    "pointwise": "pointwise_factor", "loss": "loss_factor", "optimizer": "update_factor",
}  # fmt: skip
"""Kind of streaming work -> the stack's constant: its traffic over that of single operators."""
COPY_PASSES = 2
"""A copy reads and writes each byte."""


class Rates(NamedTuple, Generic[Number]):
    """What one kind of work runs at.

    Attributes:
        flops: FLOP/s of a large operator; infinite for kinds that stream.
        ramp: FLOP added to each operator.
        nbytes: bytes/s.
    """

    flops: Number
    ramp: Number
    nbytes: Number


class Size(NamedTuple, Generic[Number]):
    """How much a piece of work is.

    Attributes:
        flops, nbytes: FLOP on the matrix units, bytes that stream.
        rows: of a product; infinite if unknown.
        kernels: launched for it.
        casting: seconds that casting its operands takes.
    """

    flops: Number
    nbytes: Number
    rows: Number
    kernels: Number
    casting: Number


class Processor:
    """A device, with the stack's kernels, as a function from work to seconds.

    Args:
        hardware: the machine.
        stack: the training software.
    """

    def __init__(self, hardware: Hardware, stack: Stack) -> None:
        self.hardware, self.stack = hardware, stack
        self.slowdown = core_slowdown(hardware)
        self.eager = "eager_kernels" in stack.habits
        self._rates: dict[tuple[str, str], Rates[float]] = {}

    def rates(self, kind: str, dtype: str) -> Rates[float]:
        """Rates of a kind of work on operands of a dtype.

        Raises:
            InputError: the device has no peak for `dtype`.

        Source: `attention_efficiency` counts the causal half and contains the kernel's curve over
        the sequence; `pointwise_factor` is the stack's traffic over that of single operators.
        """
        if (kind, dtype) not in self._rates:
            self._rates[kind, dtype] = self._find_rates(kind, dtype)
        return self._rates[kind, dtype]

    def _find_rates(self, kind: str, dtype: str) -> Rates[float]:
        device = self.hardware.device
        bandwidth = device.memory_bandwidth * device.memory_efficiency
        if kind in ("matmul", "optimizer_matmul"):
            rate = self._peak(dtype) * device.gemm_efficiency
            return Rates(rate, device.gemm_half_flops, bandwidth)
        if kind in ATTENTION:
            return Rates(self._peak(dtype) * device.attention_efficiency, 0.0, bandwidth)
        factor = TRAFFIC_FACTORS.get(kind)
        traffic = self.stack.constants[factor] if factor else 1.0
        return Rates(inf, 0.0, bandwidth / traffic)

    def _peak(self, dtype: str) -> float:
        peaks = self.hardware.device.peak_flops
        if dtype not in peaks:
            where = f"hardware {self.hardware.name}"
            allowed = f"a compute dtype with a peak: {', '.join(sorted(peaks))}"
            raise InputError(Problem(where, "device.peak_flops", f"no `{dtype}`", allowed))
        return peaks[dtype]

    def work_seconds(self, work: Work, dtype: str) -> float:
        """Seconds of one piece of work; `dtype` of its operands matters where it has FLOP."""
        rates = self.rates(work.kind, dtype)
        return float(self._seconds(self._size(work, dtype), rates, max))

    def _size(self, work: Work, dtype: str) -> Size[float]:
        """How much a piece of work is with the stack's kernels.

        A stack with the habit `eager_kernels` runs an operator as the kernels that a framework has
        for its parts, each of which reads and writes; others have one for it.

        Plain attention alternates: while its products run, memory rests, so their time counts as
        the bytes that could have moved.
        """
        traffic = self.stack.constants["score_traffic"]
        rows, kernels = float(work.rows or inf), work.kernels if self.eager else 1.0
        nbytes = work.nbytes * work.passes if self.eager else work.nbytes
        if work.kind not in ATTENTION or not traffic:
            casting = work.cast_bytes / self.rates(work.kind, dtype).nbytes
            return Size(work.flops, nbytes, rows, kernels, casting)
        again = work.kind == "attention_grad" and "recompute_scores" in self.stack.habits
        plain_flops = work.plain_flops * (1 + again * FORWARD_PRODUCTS / PLAIN_BACKWARD_PRODUCTS)
        score_bytes = work.score_bytes * (1 + again * FORWARD_PASSES / BACKWARD_PASSES)
        products = self.rates("matmul", dtype)
        resting = plain_flops / products.flops * products.nbytes
        return Size(0.0, nbytes + traffic * score_bytes + resting, rows, kernels, 0.0)

    def table_seconds(self, works: Sequence[Work], dtypes: Sequence[str]) -> FloatArray:
        """Seconds of a table of works, the same bits as `work_seconds` of each.

        Shapes:
            works, dtypes, result: (n,).
        """
        rows = [
            (*self.rates(work.kind, dtype), *self._size(work, dtype))
            for work, dtype in zip(works, dtypes, strict=True)
        ]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), 8).T
        return self._seconds(Size(*table[3:]), Rates(*table[:3]), np.maximum)

    def _seconds(
        self,
        size: Size[Number],
        rates: Rates[Number],
        larger: Callable[[Number, Number], Number],
    ) -> Number:
        """The formula of this module."""
        flops, nbytes, rows, kernels, casting = size
        padded = (flops + rates.ramp) * (1.0 + PADDING_ROWS / rows)
        busy = larger(padded / rates.flops, nbytes / rates.nbytes)
        exists = (flops + nbytes) > 0.0
        return (busy + casting + kernels * self.hardware.device.launch) * self.slowdown * exists

    def copy_terms(self, share: float) -> tuple[float, float]:
        """(seconds, seconds per byte of the source) of copying a `share` of a tensor in memory."""
        device = self.hardware.device
        bandwidth = device.memory_bandwidth * device.memory_efficiency
        return device.launch * self.slowdown, COPY_PASSES * share / bandwidth * self.slowdown

    def layer_floor(self, backward: bool) -> float:
        """Seconds of host work to issue one layer, below which the device's time cannot fall.

        Source: fit of a closed-form model to published training runs; backward issues twice the
        operators of forward, its input and weight gradients. Ranks that are host cores have no
        such floor: what a host issues, it does itself, and `launch` says how long that takes.
        """
        if self.hardware.host.ranks_share_cores:
            return 0.0
        forward = self.stack.constants["host_layer_forward_s"]
        return 2 * forward if backward else forward


def core_slowdown(hardware: Hardware) -> float:
    """By how much computing slows where ranks are cores of a host, against a rank alone.

    With n ranks on c cores a rank gets c/n of one, at most all of it; and while k cores are busy,
    each is slower by 1 + (contention - 1) · (k - 1)/(c - 1).

    Source: equal time slices of a fair scheduler; the factor and its line from one busy core to all
    are measured, by steps of one rank alone and of all at once. Ranks are taken to be busy
    together: those of a pipeline that wait are not.
    """
    host, ranks = hardware.host, min(hardware.count, hardware.devices_per_node)
    if not host.ranks_share_cores:
        return 1.0
    crowd = (min(ranks, host.cores) - 1) / max(1, host.cores - 1)
    return max(1.0, ranks / host.cores) * (1.0 + (host.contention - 1.0) * crowd)
