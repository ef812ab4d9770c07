"""Fit the bundled profiles to published runs.

    python scripts/fit_published.py --runs FILE... [--rows 40] [--iterations 4] [--write]
    python scripts/fit_published.py --runs FILE... --memory [--write]
    python scripts/fit_published.py --runs FILE... --folds [--rows 10]

Up to `--rows` runs of every source that counts are lowered once; `validate.calibrate` then turns
the constants that the profiles state. Prints errors before, after and on left-out models, and every
knob with its spread. `--write` puts fitted values, spreads and what was left unexplained into
`hardware_profiles/`; a knob that the runs do not identify keeps its value and its evidence.

`--memory` fits what decides bytes to peaks and to runs that ended out of memory. `--folds` says how
far off runs are that nothing was fitted to: their model, or their whole source, left out of fits.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import numpy as np

from autoplan.errors import AutoplanError
from autoplan.files.data import find_file
from autoplan.files.runs import read_runs
from autoplan.files.stack import FOLDER as STACKS
from autoplan.ir.record import Record
from autoplan.validate.calibrate import (
    NARROWEST,
    Fit,
    Fitter,
    FloatArray,
    fit,
    fits_told,
    unexplained,
)
from autoplan.validate.evaluate import measured_seconds
from autoplan.validate.folds import WAYS, left_out, starts
from autoplan.validate.knobs import UNFITTED, Knob, knobs_of, memory_knobs_of, read
from autoplan.validate.samples import (
    MEASURED,
    Sample,
    TimeSample,
    lowered,
    memory_sample,
    time_sample,
)
from autoplan.validate.standing import UNWEIGHTED, remark_on, source_of
from autoplan.workflow.question import headroom_of

Made = TypeVar("Made", bound=Sample)

SEED = 5
MEMORY_ITERATIONS = 20
"""Steps of a fit to bytes, which need no simulation: to the end, wherever it starts."""
SOURCE = "robust fit to published training runs, scripts/fit_published.py"


def chosen(
    records: Iterable[Record], rows: int, make: Callable[[Record], Sequence[Made]]
) -> tuple[list[Made], list[str]]:
    """Samples of up to so many runs of each source that counts, and the source of each."""
    by_source = defaultdict(list)
    for record in records:
        if not (remark_on(record) or source_of(record) in UNWEIGHTED):
            by_source[source_of(record)].append(record)
    found: list[Made] = []
    sources: list[str] = []
    for source in sorted(by_source):
        random.Random(SEED).shuffle(by_source[source])
        kept = 0
        for record in by_source[source]:
            made = made_of(record, make) if kept < rows else ()
            kept += bool(made)
            found += made
            sources += [source] * len(made)
        print(f"{source}: {kept} of {len(by_source[source])} runs", flush=True)
    return found, sources


def made_of(record: Record, make: Callable[[Record], Sequence[Made]]) -> Sequence[Made]:
    """A run's samples; none where it cannot be expressed."""
    try:
        return make(record)
    except AutoplanError:
        return ()


def timed(record: Record) -> Sequence[TimeSample]:
    """A run with a time."""
    run = lowered(record) if not record.oom else None
    seconds = measured_seconds(run.case) if run else None
    return [time_sample(run, seconds)] if run and seconds else []


def remembered(telling: Collection[str]) -> Callable[[Record], Sequence[Sample]]:
    """What makes a run's peak a sample; and its outcome, in sources where some runs failed."""

    def make(record: Record) -> Sequence[Sample]:
        peak, tells = record.measured.peak_mem_gib, source_of(record) in telling
        if not (peak or tells):
            return ()
        run = lowered(record)
        return [
            *([memory_sample(run)] if peak else ()),
            *([memory_sample(run, outcome=True)] if tells else ()),
        ]

    return make


def report(title: str, ratios: Sequence[float] | FloatArray, sources: Sequence[str]) -> None:
    """Errors by source."""
    print(f"\n{title}")
    if not sources:
        return
    table = []
    for source in dict.fromkeys(sources):
        errors = np.expm1([r for r, s in zip(ratios, sources, strict=True) if s == source])
        size = np.abs(errors)
        table.append((np.median(size), np.quantile(size, 0.9)))
        print(
            f"  {source:16} {len(errors):4}  median {np.median(size):6.1%}  p90 "
            f"{np.quantile(size, 0.9):6.1%}  max {size.max():6.1%}  bias {np.median(errors):+6.1%}"
        )
    median, p90 = np.mean(table, axis=0)
    print(f"  mean of sources: median {median:.1%}, p90 {p90:.1%}", flush=True)


def show_knobs(found: Fit, samples: Sequence[Sample]) -> None:
    """Every knob's value and spread."""
    for index, knob in enumerate(found.knobs):
        value = next(
            read(getattr(sample.case, knob.owner), knob.path)
            for sample in samples
            if knob.concerns(sample.case)
        )
        note = "" if found.identified(index) else "  not identified"
        now, spread = found.number(index, value or 0.0)
        print(f"  {knob!s:58} {value:.4g} -> {now:.4g} (x/ {spread:.3f}){note}")


def write(found: Fit, samples: Sequence[Sample]) -> None:
    """Fitted numbers into the profiles that state them."""
    for index, knob in enumerate(found.knobs):
        if not found.identified(index):
            continue
        for path, document, holder, key in places(knob, samples):
            number = holder[key]
            entry = number if isinstance(number, dict) else {"value": number}
            value, spread = found.number(index, entry["value"])
            entry["value"], entry["spread"] = float(f"{value:.4g}"), float(f"{spread:.3g}")
            entry["evidence"], entry["source"] = "fitted", SOURCE
            holder[key] = entry
            save(path, document)


def places(knob: Knob, samples: Sequence[Sample]) -> Iterable[tuple[Path, dict, dict, str]]:
    """(file, document, object, key) of every number of the profiles that a knob turns."""
    if knob.owner == "stack":
        path = find_file(knob.name, STACKS, "stack")
        document = json.loads(path.read_text())
        yield path, document, document["constants"], knob.path
        return
    section, *rest = knob.path.split(".")
    concerned = [s.case.hardware for s in samples if knob.concerns(s.case)]
    machines = {m.device.kind if section == "device" else m.name: m for m in concerned}
    for name in sorted(machines):
        path = find_file(name, "hardware_profiles", "hardware")
        document = json.loads(path.read_text())
        holders = [document.get("device", {})]
        if section == "levels":
            holders = [level for level in document.get("levels", ()) if level["name"] == rest[0]]
        number = rest[-1]
        if section == "device":
            # What a kind of device takes from a relative becomes its own once it is fitted alone.
            holders[0].setdefault(number, getattr(machines[name].device, number))
        for holder in holders:
            for key in {number, f"{number}_us", number.replace("_flops", "_gflop")}:
                if key in holder:
                    yield path, document, holder, key


def save(path: Path, document: dict) -> None:
    """A profile, as the bundled ones are written."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def fit_times(records: Sequence[Record], options: argparse.Namespace) -> None:
    """What decides seconds."""
    samples, sources = chosen(records, options.rows, timed)
    knobs = knobs_of([sample.case for sample in samples])
    print(f"{len(samples)} runs, {len(knobs)} knobs", flush=True)
    found = fit(
        Fitter(samples, knobs, sources), models(samples, sources), options.workers,
        options.iterations, tell,
    )  # fmt: skip
    for title, ratios in (("before", found.before), ("after", found.after)):
        report(title, ratios, sources)
    report("left-out models", found.left_out, sources)
    show_knobs(found, samples)
    table = unexplained([s.case.stack.name for s in samples], found.left_out)
    for name, factor in table.items():
        print(f"  unexplained {name}: {factor:.3f}")
    if options.write:
        write(found, samples)
        write_unexplained(table)


def write_unexplained(table: Mapping[str, float]) -> None:
    """What is left of each stack's runs, into its profile."""
    for name, factor in table.items():
        if name in UNFITTED:
            continue
        path = find_file(name, STACKS, "stack")
        document = json.loads(path.read_text())
        document["unexplained"] = {
            "value": float(f"{max(factor, 1 + NARROWEST):.3g}"),
            "evidence": "fitted",
            "source": f"80 % of left-out runs, {SOURCE.split(', ')[1]}",
        }
        save(path, document)


def fit_memory(records: Sequence[Record], options: argparse.Namespace) -> None:
    """What decides bytes."""
    telling = {source_of(record) for record in records if record.oom}
    samples, sources = chosen(records, options.rows, remembered(telling))
    found = fit_bytes(samples, sources)
    known = np.array([sample.known for sample in samples])
    for title, ratios in (
        ("before", found.before), ("after", found.after), ("left-out models", found.left_out),
    ):  # fmt: skip
        peaks = np.flatnonzero(known == MEASURED)
        report(title, ratios[peaks], [sources[index] for index in peaks])
        report_fits(ratios, samples)
    show_knobs(found, samples)
    if options.write:
        write(found, samples)


def fit_bytes(samples: Sequence[Sample], sources: Sequence[str]) -> Fit:
    """The constants that peaks and outcomes identify, the others as the profiles have them.

    Priors do not know the runs (`folds.starts`), so that the profiles' numbers can be made again.
    """
    knobs = memory_knobs_of([sample.case for sample in samples])
    while True:
        print(f"{len(samples)} peaks and outcomes, {len(knobs)} knobs", flush=True)
        found = fit_apart(samples, sources, knobs)
        told = [knob for index, knob in enumerate(knobs) if found.identified(index)]
        if not told or len(told) == len(knobs):
            return found
        show_knobs(found, samples)
        knobs = told


def fit_apart(samples: Sequence[Sample], sources: Sequence[str], knobs: Sequence[Knob]) -> Fit:
    """Sources that share no constant each on their own: priors weigh the same in any company."""
    before = np.array([Fitter([s], (), ["one"]).ratio(0, np.zeros(0)) for s in samples])
    after, left = before.copy(), before.copy()
    x, sigmas = np.zeros(len(knobs)), np.ones(len(knobs))
    for part in shared(samples, sources, knobs):
        rows = [n for n, source in enumerate(sources) if source in part]
        some, names = [samples[n] for n in rows], [sources[n] for n in rows]
        mine = [k for k, knob in enumerate(knobs) if any(knob.concerns(s.case) for s in some)]
        turning = [knobs[k] for k in mine]
        fitter = Fitter(some, turning, names, starts(turning, some))
        found = fit(fitter, models(some, names), 1, MEMORY_ITERATIONS)
        tell(f"fitted to {', '.join(sorted(part))}")
        x[mine], sigmas[mine] = found.x, found.sigmas
        after[rows], left[rows] = found.after, found.left_out
    return Fit(tuple(knobs), x, sigmas, before, after, left)


def shared(
    samples: Sequence[Sample], sources: Sequence[str], knobs: Sequence[Knob]
) -> list[set[str]]:
    """Sets of sources that some knob turns together."""
    parts: list[set[str]] = []
    for knob in knobs:
        pairs = zip(samples, sources, strict=True)
        mine = {source for sample, source in pairs if knob.concerns(sample.case)}
        joined = [part for part in parts if part & mine]
        parts = [part for part in parts if not part & mine] + [mine.union(*joined)]
    return parts


def report_fits(ratios: FloatArray, samples: Sequence[Sample]) -> None:
    """Agreement and false fits, with the default headroom and without."""
    for words, headroom in (("default", headroom_of), ("no", lambda memory: 0)):
        count, right, false = fits_told(samples, ratios, headroom)
        if count:
            print(
                f"  fits or out of memory, {words} headroom: {count} runs, agreement {right:.1%}, "
                f"false fits {false:.1%}", flush=True,
            )  # fmt: skip


def folds(records: Sequence[Record], options: argparse.Namespace) -> None:
    """Runs that nothing was fitted to."""
    samples, sources = chosen(records, options.rows, timed)
    knobs = knobs_of([sample.case for sample in samples])
    found = left_out(samples, knobs, sources, options.workers, options.iterations, tell)
    for way in WAYS:
        some = [one for one in found if one.way == way]
        report(f"left out: {way}", [one.ratio for one in some], [one.source for one in some])
        by = defaultdict(list)
        for one in some:
            by[one.source].append(one.covered)
        shares = {source: np.mean(hits) for source, hits in by.items()}
        print(
            f"  80 % intervals: {np.mean([one.covered for one in some]):.0%} of runs, "
            f"{np.mean(list(shares.values())):.0%} mean of sources; half-width "
            f"{np.expm1(np.median([one.half for one in some])):.0%} median; "
            + ", ".join(f"{source} {share:.0%}" for source, share in shares.items())
        )
    if options.details:
        lines = [json.dumps(asdict(one)) + "\n" for one in found]
        Path(options.details).write_text("".join(lines))


def models(samples: Sequence[Sample], sources: Sequence[str]) -> list[str]:
    """Groups of folds."""
    return [f"{source}: {s.case.record.name}" for source, s in zip(sources, samples, strict=True)]


START = time.monotonic()


def tell(text: str) -> None:
    """How far it is, on stderr."""
    sys.stderr.write(f"{text} ({time.monotonic() - START:.0f} s)\n")


def main() -> int:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", nargs="+", required=True)
    parser.add_argument("--rows", type=int, help="of a source; default 40, memory all, folds 10")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--memory", action="store_true")
    what.add_argument("--folds", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--details", metavar="FILE", help="of --folds: a JSON line for each run")
    options = parser.parse_args()
    usual = 10 if options.folds else sys.maxsize if options.memory else 40
    options.rows = options.rows or usual
    records = [record for path in options.runs for record in read_runs(Path(path))]
    work = folds if options.folds else fit_memory if options.memory else fit_times
    work(records, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
