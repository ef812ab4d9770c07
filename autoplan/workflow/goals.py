"""What is best? Goals by which plans of a machine, and machines, are ranked.

    time      fewest seconds a token (default)
    memory    least peak memory among the plans at most `NEAR` slower than the fastest
    devices   fewest devices that fit; see `ladder`
    cost      least money a token: `device.price_per_hour` of every device
    energy    least energy a token: `device.power_watts` of every device, all the time

On one machine every plan uses every device for the whole step, so time, cost and energy rank its
plans alike; they differ between machines, which is why all are counted by the token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoplan.errors import InputError, Problem, nearest
from autoplan.files.hardware import DEVICE_KEYS
from autoplan.ir.machine import Hardware
from autoplan.workflow.prediction import Priced

GOALS = ("time", "memory", "devices", "cost", "energy")
NEEDS: Mapping[str, str] = {"cost": "price_per_hour", "energy": "power"}
"""Goal -> the number of a device without which it has no answer."""
NEAR = 1.10
"""A plan that is this much slower than the fastest is still taken to save memory."""
SECONDS_PER_HOUR = 3600
UNITS: Mapping[str, str] = {
    "time": "s/token", "memory": "bytes", "devices": "devices", "cost": "price/token",
    "energy": "J/token",
}  # fmt: skip


def goal_problems(goal: str, machines: Mapping[str, Hardware]) -> list[Problem]:
    """Why a goal has no answer: it is none, or a profile lacks a number.

    Args:
        goal: as typed.
        machines: HARDWARE as typed -> the machine.
    """
    if goal not in GOALS:
        return [Problem("--goal", "", f"`{goal}`", ", ".join(GOALS), nearest(goal, GOALS))]
    attribute = NEEDS.get(goal, "")
    if not attribute:
        return []
    key, _ = DEVICE_KEYS[attribute]
    return [
        Problem(
            f"hardware {name}", f"device.{key}", "nothing",
            f"a number, which --goal {goal} needs", f"--set device.{key}=...",
        )
        for name, hardware in machines.items()
        if getattr(hardware.device, attribute) is None
    ]  # fmt: skip


def check_goal(goal: str, machines: Mapping[str, Hardware]) -> None:
    """Refuse a goal without an answer.

    Raises:
        InputError: see `goal_problems`.
    """
    problems = goal_problems(goal, machines)
    if problems:
        raise InputError(problems)


def score(priced: Priced, goal: str) -> float:
    """What the goal wants to be least, in `UNITS`."""
    predicted, device = priced.predicted, priced.plan.hardware.device
    if goal == "memory":
        return float(predicted["peak_memory_bytes"])
    if goal == "devices":
        return float(priced.devices)
    seconds = 1.0 / float(predicted["tokens_per_s"])
    if goal == "time":
        return seconds
    rate = device.power if goal == "energy" else device.price_per_hour
    assert rate is not None, "goals are checked before anything is ranked"
    return seconds * priced.devices * rate / (1 if goal == "energy" else SECONDS_PER_HOUR)


def rank_plans(plans: Sequence[Priced], goal: str) -> list[Priced]:
    """Plans of one machine, best first."""
    by_time = sorted(plans, key=lambda priced: score(priced, "time"))
    if goal != "memory" or not by_time:
        return by_time
    near = NEAR * score(by_time[0], "time")
    close = [priced for priced in by_time if score(priced, "time") <= near]
    return [*sorted(close, key=lambda priced: score(priced, "memory")), *by_time[len(close) :]]
