"""Laws: nothing costs nothing; more work never costs less; tables equal single prices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cost import Processor
from autoplan.cost.compute import core_slowdown
from autoplan.errors import InputError
from autoplan.ops import Work
from tests.cost.machines import DEVICE, FAST, HOST, OWN_NIC, STACK, cluster

PROCESSOR = Processor(cluster(), STACK)
KINDS = ("matmul", "attention", "pointwise", "optimizer")
SIZES = st.floats(0.0, 1e15)


@st.composite
def works(draw: st.DrawFn) -> Work:
    kind = draw(st.sampled_from(KINDS))
    flops = draw(SIZES) if kind in ("matmul", "attention") else 0.0
    rows = draw(st.integers(0, 5000)) if kind == "matmul" else 0
    return Work(kind, flops, draw(SIZES), rows=rows)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_costs_nothing(kind: str) -> None:
    assert PROCESSOR.work_seconds(Work(kind, 0.0, 0.0), "bf16") == 0.0
    assert PROCESSOR.table_seconds([Work(kind, 0.0, 0.0)], ["bf16"]).tolist() == [0.0]


def test_an_empty_table_is_empty() -> None:
    assert PROCESSOR.table_seconds([], []).shape == (0,)


def test_a_large_product_runs_at_its_efficiency() -> None:
    seconds = PROCESSOR.work_seconds(Work("matmul", 1e18, 1.0, rows=1 << 20), "bf16")
    assert seconds == pytest.approx(1e18 / (100e12 * 0.8), rel=1e-4)


def test_half_of_the_rate_at_the_half_size() -> None:
    """Without launch, a product of `gemm_half_flops` takes twice as long as its FLOP would."""
    no_launch = replace(cluster(), device=replace(DEVICE, launch=0.0))
    seconds = Processor(no_launch, STACK).work_seconds(Work("matmul", 1e9, 0.0), "bf16")
    assert seconds == pytest.approx(2 * 1e9 / (100e12 * 0.8))


def test_slivers_are_slower_and_wide_products_hardly() -> None:
    times = [
        PROCESSOR.work_seconds(Work("matmul", 1e12, 0.0, rows=rows), "bf16")
        for rows in (1, 8, 64, 512, 4096, 0)
    ]
    assert times == sorted(times, reverse=True)
    assert times[-2] == pytest.approx(times[-1], rel=3e-3)


def test_streams_are_bound_by_memory_and_pointwise_ones_by_the_stack() -> None:
    update = PROCESSOR.work_seconds(Work("optimizer", 0.0, 1e9), "fp32")
    pointwise = PROCESSOR.work_seconds(Work("pointwise", 0.0, 1e9), "fp32")
    assert update == pytest.approx(1e9 / (1e12 * 0.5) + 5e-6)
    assert pointwise == pytest.approx(2 * 1e9 / (1e12 * 0.5) + 5e-6)


def test_a_dtype_without_peak_is_bad_input_only_where_there_is_arithmetic() -> None:
    PROCESSOR.work_seconds(Work("pointwise", 0.0, 1e6), "int64")
    with pytest.raises(InputError, match="fp16"):
        PROCESSOR.work_seconds(Work("matmul", 1e6, 1e6), "fp16")


@given(works(), st.floats(1.0, 10.0), st.sampled_from(["bf16", "fp32"]))
@settings(max_examples=60, deadline=None)
def test_more_work_never_costs_less(work: Work, factor: float, dtype: str) -> None:
    seconds = PROCESSOR.work_seconds(work, dtype)
    assert seconds >= 0.0
    for larger in (
        replace(work, flops=work.flops * factor),
        replace(work, nbytes=work.nbytes * factor),
    ):
        assert PROCESSOR.work_seconds(larger, dtype) >= seconds


@given(works(), st.floats(1.0, 4.0))
@settings(max_examples=30, deadline=None)
def test_a_faster_device_never_costs_more(work: Work, factor: float) -> None:
    faster = replace(
        DEVICE,
        peak_flops={k: v * factor for k, v in DEVICE.peak_flops.items()},
        memory_bandwidth=DEVICE.memory_bandwidth * factor,
        launch=DEVICE.launch / factor,
    )
    processor = Processor(replace(cluster(), device=faster), STACK)
    assert processor.work_seconds(work, "bf16") <= PROCESSOR.work_seconds(work, "bf16")


@given(st.lists(st.tuples(works(), st.sampled_from(["bf16", "fp32"])), max_size=8))
@settings(max_examples=60, deadline=None)
def test_tables_have_the_bits_of_single_prices(rows: list[tuple[Work, str]]) -> None:
    table = PROCESSOR.table_seconds([w for w, _ in rows], [d for _, d in rows])
    assert table.tolist() == [PROCESSOR.work_seconds(w, d) for w, d in rows]


@pytest.mark.parametrize(("cores", "slowdown"), [(2, 4.0), (8, 1.0), (256, 1.0)])
def test_ranks_share_the_cores_of_their_host(cores: int, slowdown: float) -> None:
    """A node has eight devices; those of other nodes have cores of their own."""
    shared = cluster(cores=cores, ranks_share_cores=True)
    work = Work("matmul", 1e12, 1e9)
    alone = PROCESSOR.work_seconds(work, "bf16")
    assert Processor(shared, STACK).work_seconds(work, "bf16") == pytest.approx(slowdown * alone)
    assert HOST.cores == 64, "devices that are not cores do not share them"


@pytest.mark.parametrize(
    ("ranks", "cores", "slowdown"),
    [(1, 8, 1.0), (8, 8, 1.5), (8, 2, 4 * 1.5), (3, 5, 1.25), (8, 1, 8.0)],
)
def test_busy_cores_slow_each_other(ranks: int, cores: int, slowdown: float) -> None:
    """From one busy core to all of them on a line, whose end is the host's contention."""
    hosts = cluster(
        replace(FAST, size=ranks), OWN_NIC, cores=cores, ranks_share_cores=True, contention=1.5
    )
    assert core_slowdown(hosts) == pytest.approx(slowdown)
    assert core_slowdown(cluster(contention=1.5)) == 1, "devices that are not cores share nothing"


def test_issuing_backward_takes_twice_as_long() -> None:
    assert PROCESSOR.layer_floor(False) == 1e-3
    assert PROCESSOR.layer_floor(True) == 2e-3
