"""Fit the bundled profiles to published runs.

    python scripts/fit_published.py --runs FILE... [--rows 40] [--iterations 4] [--write]

Up to `--rows` runs of every source that counts are lowered once; `validate.calibrate` then turns
the constants that the profiles state. Prints errors before, after and on left-out models, and every
knob with its spread. `--write` puts fitted values, spreads and what was left unexplained into
`hardware_profiles/`; a knob that the runs do not identify keeps its value and its evidence.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from autoplan.errors import AutoplanError
from autoplan.files.data import find_file
from autoplan.files.runs import read_runs
from autoplan.files.stack import FOLDER as STACKS
from autoplan.ir.record import Record
from autoplan.validate.calibrate import (
    NARROWEST,
    UNFITTED,
    Fit,
    Fitter,
    Knob,
    Sample,
    fit,
    knobs_of,
    read,
    sample_of,
    unexplained,
)
from autoplan.validate.evaluate import measured_seconds
from autoplan.validate.express import express
from autoplan.validate.standing import UNWEIGHTED, remark_on, source_of

SEED = 5
SOURCE = "robust fit to published training runs, scripts/fit_published.py"


def chosen(records: Iterable[Record], rows: int) -> list[tuple[Record, Sample]]:
    """Up to so many runs of each source that counts, lowered."""
    by_source = defaultdict(list)
    for record in records:
        if not (record.oom or remark_on(record) or source_of(record) in UNWEIGHTED):
            by_source[source_of(record)].append(record)
    found = []
    for source in sorted(by_source):
        random.Random(SEED).shuffle(by_source[source])
        kept = 0
        for record in by_source[source]:
            sample = lowered(record) if kept < rows else None
            if sample:
                found.append((record, sample))
                kept += 1
        print(f"{source}: {kept} of {len(by_source[source])} runs", flush=True)
    return found


def lowered(record: Record) -> Sample | None:
    """A run ready for the fit, or None where it cannot be expressed or has no time."""
    try:
        seconds = measured_seconds(express(record))
        return sample_of(record, seconds) if seconds else None
    except AutoplanError:
        return None


def report(title: str, ratios: Sequence[float], sources: Sequence[str]) -> None:
    """Errors by source."""
    print(f"\n{title}")
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
        now = (value or 0.0) * np.exp(found.x[index])
        print(f"  {knob!s:58} {value:.4g} -> {now:.4g} (x/ {found.spreads[index]:.3f}){note}")


def write(found: Fit, samples: Sequence[Sample]) -> None:
    """Fitted numbers into the profiles that state them."""
    for index, knob in enumerate(found.knobs):
        if not found.identified(index):
            continue
        factor = float(np.exp(found.x[index]))
        for path, document, holder, key in places(knob, samples):
            number = holder[key]
            entry = number if isinstance(number, dict) else {"value": number}
            entry["value"] = float(f"{entry['value'] * factor:.4g}")
            entry["spread"] = float(f"{found.spreads[index]:.3g}")
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
    kinds = sorted({s.case.hardware.device.kind for s in samples if knob.concerns(s.case)})
    for kind in kinds:
        path = find_file(kind, "hardware_profiles", "hardware")
        document = json.loads(path.read_text())
        section, *rest = knob.path.split(".")
        holders = [document.get("device", {})]
        if section == "levels":
            holders = [level for level in document.get("levels", ()) if level["name"] == rest[0]]
        name = rest[-1]
        for holder in holders:
            for key in {name, f"{name}_us", name.replace("_flops", "_gflop")}:
                if key in holder:
                    yield path, document, holder, key


def save(path: Path, document: dict) -> None:
    """A profile, as the bundled ones are written."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", nargs="+", required=True)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    start = time.time()
    pairs = chosen((r for path in options.runs for r in read_runs(Path(path))), options.rows)
    records, samples = [record for record, _ in pairs], [sample for _, sample in pairs]
    sources = [source_of(record) for record in records]
    groups = [f"{source}: {r.name}" for source, r in zip(sources, records, strict=True)]
    knobs = knobs_of([sample.case for sample in samples])
    print(f"{len(samples)} runs, {len(knobs)} knobs, {time.time() - start:.0f} s", flush=True)
    found = fit(
        Fitter(samples, knobs, sources), groups, options.workers, options.iterations,
        lambda text: print(f"{text} ({time.time() - start:.0f} s)", flush=True),
    )  # fmt: skip
    report("before", found.before, sources)
    report("after", found.after, sources)
    report("left-out models", found.left_out, sources)
    show_knobs(found, samples)
    table = unexplained([s.case.stack.name for s in samples], found.left_out)
    for name, factor in table.items():
        print(f"  unexplained {name}: {factor:.3f}")
    if options.write:
        write(found, samples)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
