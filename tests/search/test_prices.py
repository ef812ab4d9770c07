"""Law: a route costs what its steps cost, each by its own line at the size that moves.

The pricer's own steps are the oracle: on a machine where long and short messages take different
lines, and where all take one.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from autoplan.boxing import route
from autoplan.cost import Pricer
from autoplan.ir.layout import Axis, Mesh
from autoplan.search.prices import IMPOSSIBLE, Transitions
from tests.cost.machines import FAST, OWN_NIC, STACK, cluster

MESH = Mesh((Axis("node", 4, 8), Axis("gpu", 8, 1)))
DIMS, EXTENT = ("b", "m"), (64, 64)
SIZES = (1, 1 << 10, 1 << 18, 1 << 22, 1 << 30)
"""Bytes of the whole."""
PROTOCOLS = {"start": 40e-6, "short_share": 0.4, "short_start": 10e-6, "short_latency": 1e-7}
MACHINES = {
    "one line": cluster(),
    "two lines": cluster(replace(FAST, **PROTOCOLS), replace(OWN_NIC, **PROTOCOLS)),
}


def by_steps(pricer: Pricer, source, target, nbytes: float) -> float:
    """Seconds of a route, step by step."""
    total = 0.0
    for step in route(source, target, DIMS, EXTENT, MESH.sizes):
        pieces = prod(n for p, n in zip(step.before, MESH.sizes, strict=True) if p.kind == "S")
        total += pricer.mesh_terms(step.kind, step.axes, MESH).of(nbytes / pieces)
    return total


@pytest.mark.parametrize("machine", MACHINES)
def test_a_route_costs_what_its_steps_cost(machine: str) -> None:
    pricer = Pricer(MACHINES[machine], STACK)
    transitions = Transitions(pricer, MESH)
    table = transitions.table(DIMS, EXTENT)
    routes = transitions.routes(table)
    assert routes.seconds.shape[1] == (2 if machine == "two lines" else 1)
    every = np.arange(len(table.layouts))
    for nbytes in SIZES:
        prices = routes.at(every[:, None], every, nbytes)
        for i, source in enumerate(table.layouts):
            for j, target in enumerate(table.layouts):
                if i != j and table.following[i, j] < 0:
                    assert prices[i, j] >= IMPOSSIBLE
                    continue
                expected = by_steps(pricer, source, target, nbytes)
                assert prices[i, j] == pytest.approx(expected, rel=1e-12)
                seconds, per_byte = routes.line(i, j, nbytes)
                assert seconds + per_byte * nbytes == pytest.approx(expected, rel=1e-12)


def test_short_messages_take_the_other_line() -> None:
    transitions = Transitions(Pricer(MACHINES["two lines"], STACK), MESH)
    table = transitions.table(DIMS, EXTENT)
    routes = transitions.routes(table)
    lines = {routes.line(0, j, size) for j in range(len(table.layouts)) for size in (1e3, 1e11)}
    assert len(lines) > len({routes.line(0, j, 1e11) for j in range(len(table.layouts))})
