"""How far are prices of collectives off? The README's table, as Markdown.

    python scripts/collective_accuracy.py [--here] [--rows]

Published measurements (`tests/data/collectives.json`: facts and figures, each with its source) are
priced by the ordinary code on the bundled profile of the machine. `--here` also measures every
collective on two ranks of this machine: a level is fitted to every second size, as `autoplan
profile` fits one, and judged on the sizes between; so is a table interpolated between its sizes.
`--rows` prints every measurement.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from autoplan.files.machine_spec import load_hardware
from autoplan.ir.machine import Hardware
from autoplan.units import KIB, MIB
from autoplan.validate.measure.assemble import with_rate
from autoplan.validate.measure.links import Call, CallFit, call_terms, fit_cores
from autoplan.validate.measure.machine import Effort, measure_machine

DATA = Path(__file__).parents[1] / "tests" / "data" / "collectives.json"
LARGE = MIB
"""Bytes from which a message is large."""
SIZES = tuple(KIB << shift for shift in range(15))
"""Of one rank's operand, 1 KiB to 16 MiB; every second one is held out."""
REPEATED = 24
HERE = "this machine"
BUS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send": lambda n: 1.0,
}
"""Collective -> bytes counted by the bus bandwidth, per byte of the message, of n ranks.
Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md; a message is the whole tensor, of an all_gather the
gathered one."""


class Row(NamedTuple):
    """One measurement beside its price.

    Attributes:
        machine: spec.
        collective: which.
        ranks: of the group.
        nbytes: of the message.
        measured, priced: seconds.
        source: who measured it.
    """

    machine: str
    collective: str
    ranks: int
    nbytes: int
    measured: float
    priced: float
    source: str

    @property
    def error(self) -> float:
        """Priced / measured - 1."""
        return self.priced / self.measured - 1


def published(document: dict[str, Any]) -> Iterator[Row]:
    """Every published measurement, priced."""
    for table in document["tables"]:
        hardware = load_hardware(table["machine"], table.get("set"))
        for nbytes, value in table["rows"]:
            measured = seconds_of(table, nbytes, value)
            group = tuple(table.get("devices", range(table["ranks"])))
            priced = price(table["collective"], group, nbytes, hardware)
            yield Row(
                table["machine"], table["collective"], table["ranks"], nbytes, measured, priced,
                table["source"],
            )  # fmt: skip


def seconds_of(table: dict[str, Any], nbytes: int, value: float) -> float:
    """Seconds of a measurement, given as such or as a rate in GB/s."""
    if table["rate"] == "seconds":
        return value
    counted = BUS[table["collective"]](table["ranks"]) if table["rate"] == "bus" else 1.0
    return counted * nbytes / (value * 1e9)


def price(collective: str, group: tuple[int, ...], nbytes: int, hardware: Hardware) -> float:
    """Seconds of a message among some devices of a machine."""
    operand = nbytes // len(group) if collective == "all_gather" else nbytes
    return call_terms(Call(collective, (group,), operand, (1.0,)), hardware).of(operand)


# --- this machine ---------------------------------------------------------------------------------


def here() -> list[Row]:
    """Collectives and transfers of two ranks of this machine, by how they are predicted."""
    effort = Effort(longest=0.0, steps=REPEATED, sizes=SIZES, pauses=0)  # the shortest steps only
    level = measure_machine("here", ranks=2, effort=effort).level
    assert level is not None, "two ranks have a level"
    return held_out(level.rows, load_hardware("cpu-host:2"))


def held_out(measured: Sequence[CallFit], profile: Hardware) -> list[Row]:
    """Every second size, predicted from the others and from a profile.

    Args:
        measured: collectives of the first two devices, of `SIZES`.
        profile: a machine of two ranks.
    """
    known = [row.call for row in measured if row.call.nbytes in SIZES[::2]]
    fitted = fit_cores(known, profile, 0)
    machine = with_rate(profile, 0, fitted, "")
    rows = []
    for row in measured:
        call = row.call
        if call.nbytes in SIZES[::2] or row.table_error is None:
            continue
        line = fitted.lines[call.shape]
        ways = {
            "the bundled profile": call_terms(call, profile).of(call.nbytes),
            "one line for all": call_terms(call, machine).of(call.nbytes),
            "a line for each": line.constant + line.slope * call.nbytes,
            "a table": call.typical * (1 + row.table_error),
        }
        rows += [Row(way, call.kind, 2, call.nbytes, call.typical, priced, HERE)
                 for way, priced in ways.items()]  # fmt: skip
    return rows


# --- tables ---------------------------------------------------------------------------------------


def percent(value: float, signed: bool = False) -> str:
    """`4.9 %`."""
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def cells(rows: Sequence[Row]) -> list[str]:
    """Number, median, p90 and bias of errors; dashes without rows."""
    if not rows:
        return ["0", "-", "-", "-"]
    errors = np.array([row.error for row in rows])
    size = np.abs(errors)
    bias = percent(float(np.median(errors)), signed=True)
    return [str(len(rows)), percent(median(size)), percent(float(np.quantile(size, 0.9))), bias]


def summary(rows: Sequence[Row]) -> str:
    """Errors by machine and collective, long and short messages apart."""
    head = ["", *(f"{what} {size}" for size in ("from 1 MiB:", "below:") for what in WHAT)]
    table: dict[str, list[Row]] = {}
    for row in rows:
        table.setdefault(f"{row.machine.partition(':')[0]}, {row.collective}", []).append(row)
    for machine in dict.fromkeys(row.machine for row in rows if row.source == HERE):
        table[f"**{machine}, all**"] = [row for row in rows if row.machine == machine]
    if not any(row.source == HERE for row in rows):
        table["**all**"] = list(rows)
    lines = [
        [name, *cells([r for r in some if r.nbytes >= LARGE]),
         *cells([r for r in some if r.nbytes < LARGE])]
        for name, some in table.items()
    ]  # fmt: skip
    return markdown(head, lines)


WHAT = ("rows", "median", "p90", "bias")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    head = [f"| {' | '.join(header)} |", "|---|" + "--:|" * (len(header) - 1)]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows), ""])


def all_rows(rows: Sequence[Row]) -> str:
    """Every measurement."""
    head = ("machine", "collective", "ranks", "MiB", "measured, us", "priced, us", "error")
    return markdown(
        head,
        [
            [r.machine, r.collective, str(r.ranks), f"{r.nbytes / MIB:.3g}",
             f"{r.measured * 1e6:.1f}", f"{r.priced * 1e6:.1f}", percent(r.error, signed=True)]
            for r in rows
        ],
    )  # fmt: skip


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--here", action="store_true", help="measure this machine as well")
    parser.add_argument("--rows", action="store_true", help="print every measurement")
    options = parser.parse_args()
    document = json.loads(DATA.read_text())
    rows = list(published(document))
    print(summary(rows))
    if options.rows:
        print(all_rows(rows))
    if options.here:
        print(
            "Two ranks of this machine, sizes that were held out, by what they are priced with:\n"
        )
        print(summary(here()))
    reasons = [[one["source"], one["what"], one["reason"]] for one in document["not_expressed"]]
    print(markdown(("not expressed", "what", "reason"), reasons))
    return 0


if __name__ == "__main__":
    sys.exit(main())
