"""Judge predictions: recorded runs -> the same runs as predicted -> how far off, by source."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autoplan.errors import Problem
from autoplan.files.problems import Problems
from autoplan.files.runs import read_runs
from autoplan.ir.record import Record
from autoplan.units import GIB
from autoplan.validate.evaluate import predict_all
from autoplan.validate.score import Fit, Judged, Order, Score, Scores, judged, score
from autoplan.validate.standing import IN_FULL, RULES, UNWEIGHTED
from autoplan.validate.statistics import mean, median
from autoplan.workflow.question import headroom_of

ALONE = 16
"""Runs that one process predicts sooner than others are started."""


@dataclass(frozen=True)
class Judgement:
    """Recorded runs beside their predictions.

    Attributes:
        scores: of all of them.
        files: that were read.
    """

    scores: Scores
    files: tuple[str, ...]

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`: errors and shares are fractions, an absent number is null."""
        scores = self.scores
        recorded = Counter(one.source for one in scores.judged)
        return {
            "files": list(self.files),
            "rows": len(scores.judged),
            "told": _told(scores),
            "sources": {
                name: {
                    "recorded": recorded[name],
                    "weight": 0 if name in UNWEIGHTED else 1,
                    "unweighted_because": UNWEIGHTED.get(name),
                    **_score_document(found),
                }
                for name, found in scores.sources.items()
            },
            "overall": _overall_document(scores),
            "apart": {
                name: {"why": _why(name), **_score_document(found)}
                for name, found in scores.apart.items()
            },
            "flagged": self._flagged(),
            "not_expressed": [
                {"id": one.record.id, "source": one.source, "reason": one.prediction.refusal}
                for one in sorted(scores.not_expressed, key=_place)
            ],
        }

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Each run, in the order of the files."""
        return [_row_document(one) for one in self.scores.judged]

    def _flagged(self) -> dict[str, Any]:
        """Remark -> whom it is on, with the errors of those that are priced."""
        bearers: dict[str, list[str]] = {}
        for one in self.scores.judged:
            if one.remark:
                bearers.setdefault(one.remark, []).append(one.record.id)
        found = {}
        for remark in sorted(bearers.keys() - IN_FULL):
            priced = self.scores.flagged.get(remark)
            found[remark] = {
                "why": _why(remark),
                "recorded": len(bearers[remark]),
                "ids": sorted(bearers[remark]),
                "rows": priced.rows if priced else 0,
                "step_time": asdict(priced.step_time) if priced else None,
                "peak_memory": asdict(priced.peak_memory) if priced else None,
            }
        return found


def judge_runs(paths: Sequence[str], progress: Callable[[str], None] | None = None) -> Judgement:
    """Predict recorded runs and score the predictions.

    Args:
        paths: files of recorded runs, and training logs.
        progress: told how far it is.

    Raises:
        InputError: what is wrong with the files; every problem at once.
    """
    records = read_records(paths, Problems("--runs"))
    tell = progress or (lambda text: None)

    def told(done: int) -> None:
        tell(f"{done} of {len(records)} runs predicted")

    workers = len(os.sched_getaffinity(0)) if len(records) > ALONE else 1
    predictions = predict_all(records, workers, told)
    rows = judged(records, predictions)
    return Judgement(score(rows, headroom_of), tuple(paths))


def read_records(paths: Sequence[str], problems: Problems) -> tuple[Record, ...]:
    """The runs of several files, each named once.

    Raises:
        InputError: what is wrong with them, and what `problems` holds already.
    """
    seen: set[Path] = set()
    records: list[Record] = []
    for path in paths:
        if Path(path).absolute() in seen:
            problems.found.append(Problem(problems.source, "", f"`{path}` twice", "each file once"))
            continue
        seen.add(Path(path).absolute())
        records += problems.attempt(partial(read_runs, path)) or ()
    problems.check()
    return tuple(records)


def _told(scores: Scores) -> dict[str, int]:
    """How many runs count and how many do not, each run once."""
    words = Counter(map(_standing, scores.judged))
    return {word: words[word] for word in ("scored", "flagged", "apart", "not_expressed")}


def _standing(one: Judged) -> str:
    if one.prediction.refusal:
        return "not_expressed"
    if not one.remark:
        return "scored"
    return "apart" if one.remark in IN_FULL else "flagged"


def _place(one: Judged) -> tuple[str, str]:
    return one.source, one.record.id


def _why(name: str) -> str:
    """Of the rule that set runs apart, or "" for a flag of the record's own."""
    return next((rule.why for rule in RULES if name.endswith(rule.remark)), "")


def _score_document(found: Score) -> dict[str, Any]:
    order = found.order
    return {
        "rows": found.rows,
        "step_time": asdict(found.step_time),
        "peak_memory": asdict(found.peak_memory),
        "spearman": median(order.spearman),
        "pair_order": order.pair_order,
        "regret": median(order.regrets),
        "fit_agreement": found.fit.agreement if found.fit else None,
        "false_fits": found.fit.false_fits if found.fit else None,
        "interval_coverage": found.interval_coverage,
        "groups": _groups_document(order),
        "fits": _fits_document(found.fit, found.fit_bare),
    }


def _groups_document(order: Order) -> dict[str, Any]:
    return {
        "ranked": len(order.spearman),
        "spearman_min": min(order.spearman, default=None),
        "pairs": order.pairs,
        "choices": len(order.regrets),
        "regret_mean": mean(order.regrets),
        "regret_max": max(order.regrets, default=None),
        "regret_within_3_percent": order.small_regrets,
    }


def _fits_document(fit: Fit | None, bare: Fit | None) -> dict[str, Any] | None:
    """With the default headroom, and at the device's very limit."""
    if fit is None or bare is None:
        return None
    return {
        "rows": fit.rows,
        "out_of_memory": fit.out_of_memory,
        "headroom": {"agreement": fit.agreement, "false_fits": fit.false_fits},
        "limit": {"agreement": bare.agreement, "false_fits": bare.false_fits},
    }


def _overall_document(scores: Scores) -> dict[str, Any]:
    """Sources weigh alike: pooled quantiles have weights, other numbers are means over sources."""
    weighed = scores.weighed
    document = _score_document(scores.overall)
    medians = [score.step_time.median_abs_error or 0.0 for score in weighed.values()]
    orders = [score.order.pair_order for score in weighed.values()]
    by_source = mean([order for order in orders if order is not None])
    return {
        "sources": len(weighed),
        **document,
        "mean_of_medians": mean(medians),
        "worst_source": max(medians, default=None),
        "pair_order": by_source,
        "pair_order_pooled": scores.overall.order.pair_order,
    }


def _row_document(one: Judged) -> dict[str, Any]:
    prediction, memory = one.prediction, one.record.measured.peak_mem_gib
    known = not prediction.refusal
    return {
        "id": one.record.id,
        "source": one.source,
        "remark": one.remark,
        "not_expressed": prediction.refusal,
        "predicted_step_time_s": prediction.step_time if known else None,
        "step_time_interval_s": list(prediction.interval) if prediction.interval else None,
        "measured_step_time_s": prediction.measured,
        "error": one.error,
        "breakdown_s": _plain(prediction.breakdown),
        "predicted_peak_bytes": list(prediction.peaks),
        "measured_peak_bytes": round(memory * GIB) if memory else None,
        "memory_error": one.memory_error,
        "memory": _plain(prediction.lines),
        "capacity_bytes": prediction.capacity if known else None,
        "out_of_memory": one.record.oom,
        "assumed": list(prediction.assumed),
    }


def _plain(table: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return dict(table) if table is not None else None
