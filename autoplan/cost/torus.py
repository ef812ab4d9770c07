"""What a group of chips has of the links of a torus.

A level with `torus` axes joins its units in rings along each of them, and `bandwidth` is what one
unit sends over one axis, both ways round. A ring collective uses every axis that its group spans.
How a library lays groups on the torus is not known; but groups whose sizes multiply to the whole
share its axes, and logarithms of sizes add up as they do. So a group of n of N units is taken to
span torus · log(n) / log(N) axes, at least one, each of n^(1/axes) units.

Source: Austin et al. 2025, "How to scale your model", part 3 (gathers over several axes use the
links of all; an exchange of all with all is bound by the links across the middle of an axis, so it
takes a quarter of a gather of the whole); a group of half an axis, which does not close to a ring,
is taken to have the same links.
"""

from __future__ import annotations

from math import log, pow

from autoplan.ir.machine import Level

PATH = 4
"""Units of a ring over the mean number of links that a message between two of them passes."""


def axes_of(fan: int, level: Level) -> float:
    """Axes that a group of `fan` units spans; 1 where the level is no torus."""
    if level.torus < 2 or fan < 2:
        return 1.0
    return max(1.0, level.torus * log(fan) / log(max(level.size, fan)))


def ring_steps(fan: int, level: Level) -> float:
    """Steps of a gather or scatter over `fan` units: axis after axis."""
    axes = axes_of(fan, level)
    return axes * (pow(fan, 1 / axes) - 1)


def detour(fan: int, level: Level) -> float:
    """By how much an exchange of all with all takes longer than messages between neighbours."""
    if not level.torus:
        return 1.0
    axes = axes_of(fan, level)
    return max(1.0, axes * pow(fan, 1 / axes) / PATH)
