"""Low-rank adapters: small trainable products beside frozen projections.

A projection y = x·Wᵀ becomes y = x·Wᵀ + (alpha / r) · (x·Aᵀ)·Bᵀ, with A of r rows and B of r
columns; A begins normal and B zero, so that training starts from the model as it is.

Source: Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models, section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from autoplan.errors import InputError, Problem, nearest

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
"""Projections of a layer that an adapter may stand beside."""
PREFIX = "lora"
KEYS = ("r", "targets", "alpha")
LARGEST_RANK = 1 << 20


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of one rank in every layer.

    Attributes:
        rank: r, width of the bottleneck (dim `a`).
        targets: of `TARGETS`, in that order.
        alpha: the adapters' output is scaled by alpha / rank.
    """

    rank: int = 16
    targets: tuple[str, ...] = ("q", "v")
    alpha: float = 32.0

    @property
    def factor(self) -> float:
        """Of the adapters' output."""
        return self.alpha / self.rank

    def __str__(self) -> str:
        return f"{PREFIX}:r={self.rank},targets={'|'.join(self.targets)},alpha={self.alpha:g}"


def is_lora(text: str) -> bool:
    """Whether the text of `trainable` means adapters, well-formed or not."""
    return text.partition(":")[0].strip().lower() == PREFIX


def parse_lora(text: str, source: str = "workload", path: str = "trainable") -> Lora | None:
    """The adapters that `lora:r=16,targets=q|v,alpha=32` means; None for any other text.

    Args:
        text: of `trainable`; keys that it leaves out take their defaults.
        source, path: for messages.

    Raises:
        InputError: every problem at once.
    """
    if not is_lora(text):
        return None
    rest = text.partition(":")[2]
    problems: list[Problem] = []

    def wrong(found: str, allowed: str, hint: str = "") -> None:
        problems.append(Problem(source, path, f"`{found}`", allowed, hint))

    values: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in KEYS:
            wrong(part, f"{', '.join(KEYS)}, each =value", nearest(key, KEYS))
        elif key in values or not value:
            wrong(part, "each key once, as in lora:r=16,targets=q|v,alpha=32")
        else:
            values[key] = value
    targets = [t.strip() for t in values.get("targets", "q|v").lower().split("|")]
    for target in targets:
        if target not in TARGETS:
            allowed = f"projections among {'|'.join(TARGETS)}, with | between them"
            wrong(f"targets={target}", allowed, nearest(target, TARGETS))
    rank = _number(values, "r", Lora().rank)
    if not (1 <= rank <= LARGEST_RANK and rank == int(rank)):
        wrong(f"r={values['r']}", f"a whole number from 1 to {LARGEST_RANK}")
    alpha = _number(values, "alpha", Lora().alpha)
    if not 0 < alpha <= 1e12:
        wrong(f"alpha={values['alpha']}", "a number above 0")
    if problems:
        raise InputError(problems)
    return Lora(int(rank), tuple(t for t in TARGETS if t in targets), alpha)


def _number(values: Mapping[str, str], key: str, default: float) -> float:
    """A finite number, or -1 for any other text."""
    try:
        number = float(values.get(key, default))
    except ValueError:
        return -1.0
    return number if isfinite(number) else -1.0
