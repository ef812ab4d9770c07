"""Which numbers of a machine explain measured plans best?

Every number is turned by a factor exp(x); plans are simulated anew with it. Minimised is the soft
absolute error of log(predicted / measured), with x held near 0 by how far the profile's number is
believed to be off, so that what plans do not tell stays as it was measured alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, inf, log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from autoplan.cost import Measures, Pricer
from autoplan.files.machine_spec import resize
from autoplan.files.stack import load_stack
from autoplan.ir.machine import Evidence, Hardware
from autoplan.ir.program import Program
from autoplan.lower import lower
from autoplan.simulate import run
from autoplan.validate.measure.rounding import rounded
from autoplan.workflow import step_graph

from .predicted import Row, plan_of

SPREADS = {
    "device.gemm_efficiency": 1.2,
    "device.gemm_half_flops": 1.5,
    "device.attention_efficiency": 1.2,
    "device.memory_efficiency": 1.2,
    "device.launch": 1.5,
    "host.contention": 1.2,
    "host.start_ramp": 2.0,
    "levels.start": 1.3,
    "levels.latency": 1.3,
    "levels.efficiency": 1.3,
}
"""Number -> one-sigma factor of what is believed before plans are seen; levels: the innermost. What
is 0 stays so.
[empirical] Parts of steps measured alone are met within a fifth, communication that is measured
between computing within a third."""
SIGMA = 0.1
"""Of log(predicted / measured) of a plan that nothing is wrong with: visits of one plan differ by
as much. Residuals beyond it count by their absolute value."""
LEAST_SPREAD = 1.02
INSIDE = 1e-2
"""How far from its bounds a number starts: on them it would not move."""
TOLD = 0.7
"""Part of a number's first uncertainty that plans must take away to tell it."""
ROUNDS = 12
"""Of the least squares; each prices all plans once for every number."""

Floats = NDArray[np.float64]


class Fitting:
    """Measured plans, to be priced by many machines.

    Args:
        rows: measured.
        hardware: of which plans use as many devices as they have ranks; the start.
    """

    def __init__(self, rows: Sequence[Row], hardware: Hardware) -> None:
        self.hardware = hardware
        self._stack = load_stack("autoplan")
        self._measures: Measures = {}
        self._plans: list[tuple[Program, int]] = []
        for row in rows:
            plan = plan_of(row)
            program = lower(step_graph(plan.model, plan.workload), plan)
            self._plans.append((program, int(row["ranks"])))
        self.measured = np.array([float(row["measured"]["step_time_s"]) for row in rows])

    def errors(self, hardware: Hardware) -> Floats:
        """log(predicted / measured) of every plan."""
        pricers = {
            ranks: Pricer(resize(hardware, str(ranks)), self._stack, self._measures)
            for ranks in {ranks for _, ranks in self._plans}
        }
        seconds = [
            run(program, pricers[ranks]).makespan + pricers[ranks].fixed_step
            for program, ranks in self._plans
        ]
        errors: Floats = np.log(np.array(seconds) / self.measured)
        return errors

    def fit(self, source: str) -> Hardware:
        """The machine that explains the plans best; what they do not tell stays as it was.

        Args:
            source: of the evidence.
        """
        paths = [path for path in SPREADS if _number(self.hardware, path)]
        spreads = self._least(paths)[1]
        told = [p for p, found in zip(paths, spreads, strict=True) if found < TOLD * _sigma(p)]
        turns, spreads = self._least(told)
        machine = turned(self.hardware, dict(zip(told, turns, strict=True)))
        evidence = dict(machine.evidence)
        for path, sigma in zip(told, spreads, strict=True):
            spread = max(LEAST_SPREAD, float(f"{exp(sigma):.3g}"))
            evidence[_place(machine, path)] = Evidence("fitted", source, spread)
        return rounded(replace(machine, evidence=evidence))

    def _least(self, paths: Sequence[str]) -> tuple[Floats, Floats]:
        """The turns of some numbers that explain the plans best, and how sure they are."""
        sigmas = np.array([_sigma(path) for path in paths])
        low, high = np.array([_bounds(self.hardware, path) for path in paths]).T

        def residuals(turns: Floats) -> Floats:
            machine = turned(self.hardware, dict(zip(paths, turns, strict=True)))
            return np.concatenate([self.errors(machine) / SIGMA, turns / sigmas])

        found = least_squares(
            residuals, np.clip(np.zeros(len(paths)), low + INSIDE, high - INSIDE),
            bounds=(low, high), loss="soft_l1", max_nfev=ROUNDS, x_scale=sigmas,
        )  # fmt: skip
        return found.x, np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))


def _sigma(path: str) -> float:
    return log(SPREADS[path])


def turned(hardware: Hardware, turns: Mapping[str, float]) -> Hardware:
    """The machine with numbers multiplied by exp(x)."""
    changes: dict[str, dict[str, Any]] = {"device": {}, "host": {}, "levels": {}}
    for path, x in turns.items():
        changes[path.split(".")[0]][path.split(".")[1]] = _number(hardware, path) * exp(x)
    level = replace(hardware.levels[0], **changes["levels"])
    return replace(
        hardware,
        device=replace(hardware.device, **changes["device"]),
        host=replace(hardware.host, **changes["host"]),
        levels=(level, *hardware.levels[1:]),
    )


def _number(hardware: Hardware, path: str) -> float:
    section, name = path.split(".")
    owner = hardware.levels[0] if section == "levels" else getattr(hardware, section)
    return float(getattr(owner, name))


def _bounds(hardware: Hardware, path: str) -> tuple[float, float]:
    """Least and most x: contention is at least 1, an efficiency at most."""
    edge = -log(_number(hardware, path))
    least = edge if path.endswith("contention") else -inf
    return least, (edge if path.endswith("efficiency") else inf)


def _place(hardware: Hardware, path: str) -> str:
    """Where the evidence of a number stands."""
    return path.replace("levels.", f"levels.{hardware.levels[0].name}.")
