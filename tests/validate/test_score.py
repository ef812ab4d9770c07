"""Scores of recorded runs: who counts, and the laws that hold between parts and whole."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from autoplan.ir.record import Measured, Record, Shape
from autoplan.units import GIB
from autoplan.validate.evaluate import Prediction
from autoplan.validate.score import fit_of, judged, order_of, score

CAPACITY = 80 * GIB
HEADROOM = 5 * GIB


def record(name: str, memory: float | None = None, flags: tuple[str, ...] = (), **more) -> Record:
    plain = {"source": "s", "name": "m", "shape": Shape(), "seq_len": 1, "devices": 8}
    measured = Measured(step_time_s=None if "oom" in flags else 1.0, peak_mem_gib=memory)
    return Record(id=name, flags=flags, measured=measured, **{**plain, **more})


def prediction(name: str, times: tuple[float, float] | None, peak: float = 40.0) -> Prediction:
    """Predicted and measured seconds; gibibytes of the first of two stages, the fuller one."""
    step, measured = times or (1.0, None)
    peaks = (round(peak * GIB), round(peak * GIB / 2))
    return Prediction(
        name,
        measured,
        step,
        interval=(0.8 * step, 1.25 * step),
        peaks=peaks,
        printed=peaks[0],
        capacity=CAPACITY,
    )


def scored(*pairs: tuple[Record, Prediction]):
    return score(judged(*zip(*pairs, strict=True)), lambda memory: HEADROOM)


def sample(seed: int, source: str, rows: int) -> list[tuple[Record, Prediction]]:
    random = Random(seed)
    names = [f"{source}-{number}" for number in range(rows)]
    times = [(random.uniform(1, 3), random.uniform(1, 3)) for _ in names]
    return [
        (record(name, memory=40.0), prediction(name, pair, random.uniform(20, 60)))
        for name, pair in zip(names, times, strict=True)
    ]


def test_every_run_is_told_once():
    flags = ("layout_unknown",)
    pairs = [
        (record("a-1"), prediction("a-1", (1.1, 1.0))),
        (record("a-2", flags=flags), prediction("a-2", (2.0, 1.0))),
        (record("a-3", flags=flags), Prediction("a-3", refusal="no words")),
        (record("nanotron-1", parallel={"tp": 16}), prediction("nanotron-1", (1.5, 1.0))),
        (record("nanotron-2", parallel={"tp": 8}), prediction("nanotron-2", (1.2, 1.0))),
    ]
    found = scored(*pairs)
    assert {name: part.rows for name, part in found.sources.items()} == {"a": 1, "nanotron": 1}
    assert {name: part.rows for name, part in found.flagged.items()} == {"layout_unknown": 1}
    assert [one.record.id for one in found.not_expressed] == ["a-3"]
    assert {name: part.rows for name, part in found.apart.items()} == {
        "nanotron, tp > 8": 1, "nanotron, all rows": 2,
    }  # fmt: skip
    assert found.overall.rows == 2


def test_perfect_predictions_have_no_error():
    pairs = [(r, replace(p, step_time=p.measured, printed=40 * GIB)) for r, p in sample(1, "a", 20)]
    (found,) = scored(*pairs).sources.values()
    for errors in (found.step_time, found.peak_memory):
        assert (errors.rows, errors.max_abs_error, errors.bias) == (20, 0, 0)
    assert (found.order.pair_order, found.order.spearman) == (1, pytest.approx((1.0,)))
    assert found.order.regrets == (0,)


def test_sources_weigh_alike_whatever_their_size():
    small, large = sample(2, "a", 3), sample(3, "b", 60)
    parts = scored(*small, *large)
    shares = [part.step_time.within_20_percent for part in parts.sources.values()]
    assert parts.overall.step_time.within_20_percent == pytest.approx(sum(shares) / 2)
    alone = scored(*large)
    assert alone.overall.step_time.p90_abs_error == pytest.approx(
        alone.sources["b"].step_time.p90_abs_error
    )


def test_a_source_without_weight_changes_nothing_overall():
    some = sample(4, "a", 9)
    assert scored(*some).overall == scored(*some, *sample(5, "vtrain-single", 50)).overall


def test_memory_is_that_of_the_peak_that_is_printed():
    found = scored((record("a-1", memory=20.0), prediction("a-1", (1.0, 1.0), peak=30.0)))
    assert found.sources["a"].peak_memory.bias == pytest.approx(0.5)


def test_intervals_cover_what_lies_inside():
    """From 0.8 to 1.25 of the prediction."""
    names = [f"a-{number}" for number in range(4)]
    times = [(1.0, 0.7), (1.0, 0.9), (1.0, 1.2), (1.0, 1.3)]
    pairs = [(record(n), prediction(n, pair)) for n, pair in zip(names, times, strict=True)]
    unmeasured = (record("a-9", flags=("oom",)), prediction("a-9", None))
    assert scored(*pairs, unmeasured).sources["a"].interval_coverage == 0.5


def test_fits_are_judged_where_some_runs_failed():
    """80 GiB of which 5 stay free: 78 is predicted to fit only at the very limit."""
    oom = ("oom",)
    pairs = [
        (record("a-1"), prediction("a-1", (1.0, 1.0), 70)),
        (record("a-2"), prediction("a-2", (1.0, 1.0), 78)),
        (record("a-3", flags=oom), prediction("a-3", None, 74)),
        (record("a-4", flags=oom), prediction("a-4", None, 90)),
        (record("b-1"), prediction("b-1", (1.0, 1.0), 90)),
    ]
    found = scored(*pairs)
    assert found.sources["b"].fit is None
    fit, bare = found.sources["a"].fit, found.sources["a"].fit_bare
    assert (fit.rows, fit.out_of_memory, fit.agreement, fit.false_fits) == (4, 2, 0.5, 0.5)
    assert (bare.agreement, bare.false_fits) == (0.75, pytest.approx(1 / 3))
    assert fit_of([], lambda memory: 0) is None


def test_alternatives_are_compared_within_their_group_only():
    pairs = [(record(f"a-{n}"), prediction(f"a-{n}", (n, n))) for n in range(1, 4)]
    pairs += [
        (record(f"a-{n}", devices=16), prediction(f"a-{n}", (n, 10 - n))) for n in range(4, 7)
    ]
    found = order_of(judged(*zip(*pairs, strict=True)))
    assert (found.right_pairs, found.pairs) == (3, 6)
    assert sorted(found.regrets) == [0, 0.5]
    assert found.small_regrets == 0.5
    assert found.spearman == ()
