"""Predicted against measured, here: predict many plans, then run them in turn and compare.

    OMP_NUM_THREADS=1 python scripts/campaign.py                 on 1 and 2 ranks of this machine
    OMP_NUM_THREADS=1 python scripts/campaign.py --ranks 4       the order of plans only
    OMP_NUM_THREADS=1 python scripts/campaign.py --namespaces    two nodes joined by a slow link
    python scripts/campaign.py --reprice campaign/results.json [--hardware NAME]
    python scripts/campaign.py --fit campaign/results.json [--hardware NAME]

All predictions are in `predictions.json` of the output folder before anything runs. Plans are
visited in shuffled rounds; a plan's time is the median over its undisturbed visits, warm-up
dropped. `results.json` holds each plan, what was predicted of it and its parts, and every visit, so
that `--reprice` judges changed costs or another hardware profile without running anything;
`runs.jsonl` is for `autoplan validate --runs` and `autoplan calibrate`. `--fit` writes the hardware
profile that explains such results best, beginning with a measured one (`autoplan profile`).
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from math import expm1
from pathlib import Path
from typing import Any

import torch
from measuring import namespaces
from measuring.fitted import Fitting
from measuring.here import WARM_UP, Turns, run_in_turn
from measuring.predicted import Row, predict_all, repriced, row_of, write_models
from measuring.runs import write_runs
from measuring.scores import render, score
from measuring.visits import Seen, measured
from measuring.workloads import KINDS, MODELS, Case, namespace_cases, strata

from autoplan.errors import AutoplanError
from autoplan.files.hardware import dump_hardware
from autoplan.files.machine_spec import load_hardware
from autoplan.files.text import read_json, write_json
from autoplan.presets.pins import DEGREES
from autoplan.units import format_seconds
from autoplan.validate.campaign import balanced_sample
from autoplan.validate.statistics import errors_of
from autoplan.workflow import Priced

Planned = list[tuple[Case, Priced]]


def parse(argv: Sequence[str]) -> Namespace:
    """The command line."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hardware", help="profile of one rank's machine (default cpu-host)")
    parser.add_argument("--ranks", type=counts, default=(1, 2), help="processes: 1,2 or 4")
    parser.add_argument("--plans", type=positive, default=64, help="how many")
    parser.add_argument("--rounds", type=positive, default=3, help="visits of each plan")
    parser.add_argument("--steps", type=positive, default=2, help="steps of a visit that count")
    parser.add_argument("--extra", type=int, default=1, help="more rounds of disturbed plans")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and the order")
    parser.add_argument("-o", "--output", type=Path, default=Path("campaign"), help="folder")
    parser.add_argument("--namespaces", action="store_true", help="two nodes of two ranks")
    parser.add_argument("--rate", type=float, default=20, help="Mbit/s between the nodes")
    parser.add_argument("--reprice", type=Path, metavar="RESULTS", help="judge these again")
    parser.add_argument("--fit", type=Path, metavar="RESULTS", help="write the machine of these")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    """A number of something that there must be."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"found `{text}`, allowed: a positive number")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Numbers of ranks, joined by commas."""
    found = {int(word) if word.isdecimal() else 0 for word in text.split(",")}
    if not found <= KINDS.keys():
        raise ArgumentTypeError(f"found `{text}`, allowed: {', '.join(map(str, KINDS))}")
    return tuple(sorted(found))


def tell(text: str) -> None:
    """Say how far it is, where someone looks."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")


def predicted(planned: Planned, folder: Path) -> list[Row]:
    """Rows without measurements, on disk before anything runs."""
    rows = [row_of(number, case, priced) for number, (case, priced) in enumerate(planned)]
    write_json(folder / "predictions.json", {"rows": rows})
    return rows


def finish(rows: list[Row], visits: list[list[Seen]], options: Namespace, **facts: Any) -> None:
    """Add what was measured, write the results and print the tables."""
    for row, seen in zip(rows, visits, strict=True):
        row["measured"] = measured(seen)
    summary = score(rows)
    document = {"score": summary, "facts": facts, "rows": rows}
    write_json(options.output / "results.json", document)
    tell("")
    print(render(rows, crowded(rows)))


def crowded(rows: Sequence[Row]) -> bool:
    """Whether a plan has more ranks than this machine has cores."""
    most = max(int(row["ranks"]) for row in rows)
    return most > (os.cpu_count() or 1)


def here(options: Namespace) -> None:
    """Plans on this machine."""
    ranks = options.ranks
    write_models(options.output / "models", MODELS)
    kinds = dict(chain.from_iterable(strata(count).items() for count in ranks))
    # More than asked for: some combinations are illegal.
    cases = balanced_sample(kinds, 2 * options.plans, options.seed)
    profile = options.hardware or "cpu-host"
    machines = {count: f"{profile}:{count}" for count in ranks}
    planned = predict_all(cases, options.output / "models", machines)[: options.plans]
    rows = predicted(planned, options.output)
    turns = Turns(options.rounds, options.steps, options.extra, options.seed)
    once = sum(priced.predicted["step_time_s"] for _, priced in planned)
    every = once * turns.rounds * (turns.steps + WARM_UP)
    print(f"{len(planned)} plans; at the predicted speed {format_seconds(every)}", flush=True)
    visits = run_in_turn([priced for _, priced in planned], turns, tell)
    finish(rows, visits, options, ranks=ranks, cores=os.cpu_count())
    write_runs(options.output / "runs.jsonl", rows, profile)


def apart(options: Namespace) -> None:
    """Plans on two nodes of this machine."""
    refusal = namespaces.refusal()
    if refusal:
        print(f"skipped: {refusal}")
        return
    write_models(options.output / "models", MODELS)
    link = namespaces.Link(options.rate * 1e6 / 8)
    machine = namespaces.write_machine(options.output, options.hardware or "cpu-host", link)
    planned = predict_all(namespace_cases(), options.output / "models", {4: machine})
    rows = predicted(planned, options.output)
    turns = Turns(options.rounds, options.steps, 0, options.seed)
    visits = namespaces.run_apart(rows, link, turns, options.output)
    finish(rows, visits, options, ranks=(4,), megabit_per_s=options.rate)
    best = min(rows, key=lambda row: float(row["measured"]["step_time_s"]))
    pick = rows[0]["measured"]["step_time_s"] / best["measured"]["step_time_s"] - 1
    chosen = in_words(rows[0]["plan"]["parallel"])
    print(f"\nthe pick, {chosen}, takes {pick:.1%} longer than the measured best, {best['pins']}")


def in_words(parallel: Mapping[str, Any]) -> str:
    """The degrees of a plan that are not 1, and how it uses them."""
    degrees = [f"{key}={parallel[key]}" for key in DEGREES if parallel[key] != 1]
    more = [f"{key}={parallel[key]}" for key in ("order", "zero", "micro_batch")]
    return ",".join(degrees + more)


def reprice(options: Namespace) -> None:
    """Judge an earlier campaign by the costs of today."""
    rows = [repriced(row, options.hardware) for row in read_json(options.reprice)["rows"]]
    print(render(rows, crowded(rows)))


def fit(options: Namespace) -> None:
    """Fit a hardware profile to an earlier campaign."""
    rows = [row for row in read_json(options.fit)["rows"] if not row["measured"]["disturbed"]]
    start = load_hardware(options.hardware or "cpu-host")
    fitting = Fitting(rows, start)
    today = datetime.now(UTC).date().isoformat()
    found = fitting.fit(f"fit to {len(rows)} plans run here, scripts/campaign.py, {today}")
    path = options.output / "hardware.json"
    write_json(path, dump_hardware(found))
    for name, machine in (("before", start), ("after", found)):
        off = errors_of([expm1(error) for error in fitting.errors(machine)])
        print(f"{name}: median {off.median_abs_error:.1%}, p90 {off.p90_abs_error:.1%}")
    print(f"written: {path}")


def main(argv: Sequence[str]) -> int:
    """Run what the command line asks for; the exit code."""
    options = parse(argv)
    torch.set_num_threads(1)  # workers are forked, which other threads do not survive
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        if options.reprice:
            reprice(options)
        elif options.fit:
            fit(options)
        elif options.namespaces:
            apart(options)
        else:
            here(options)
    except AutoplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
