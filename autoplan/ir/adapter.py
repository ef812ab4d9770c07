"""Low-rank adapters: small trainable products beside frozen projections.

A projection y = x·Wᵀ becomes y = x·Wᵀ + (alpha / r) · (x·Aᵀ)·Bᵀ, with A of r rows and B of r
columns; A begins normal and B zero, so that training starts from the model as it is.

Source: Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from autoplan.errors import InputError, Problem, nearest

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
"""Projections of a layer that an adapter may stand beside."""
PREFIX = "lora"
KEYS = ("r", "targets", "alpha")
LARGEST_RANK, LARGEST_ALPHA = 1 << 20, 1e12


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
        source: of the text, for messages.
        path: of the field in its source, for messages.

    Raises:
        InputError: every problem at once.
    """
    if not is_lora(text):
        return None
    found: list[tuple[str, str, str]] = []
    values = _pairs(text.partition(":")[2], found)
    default = Lora()
    targets = [t.strip() for t in values.get("targets", "|".join(default.targets)).split("|")]
    targets = [t.lower() for t in targets]
    for target in sorted(set(targets) - set(TARGETS)):
        allowed = f"projections among {'|'.join(TARGETS)}, with | between them"
        found.append((f"targets={target}", allowed, nearest(target, TARGETS)))
    rank = _number(values.get("r"), default.rank)
    if not (1 <= rank <= LARGEST_RANK and rank == int(rank)):
        found.append((f"r={values['r']}", f"a whole number from 1 to {LARGEST_RANK}", ""))
    alpha = _number(values.get("alpha"), default.alpha)
    if not 0 < alpha <= LARGEST_ALPHA:
        found.append((f"alpha={values['alpha']}", "a number above 0", ""))
    if found:
        raise InputError([Problem(source, path, f"`{a}`", b, hint) for a, b, hint in found])
    return Lora(int(rank), tuple(t for t in TARGETS if t in targets), alpha)


def _pairs(text: str, found: list[tuple[str, str, str]]) -> dict[str, str]:
    """`key=value,...` as a table; what is wrong, allowed and meant goes to `found`."""
    values: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in KEYS:
            found.append((part, f"{', '.join(KEYS)}, each =value", nearest(key, KEYS)))
        elif key in values or not value:
            found.append((part, f"each key once, as in {Lora()}", ""))
        else:
            values[key] = value
    return values


def _number(text: str | None, default: float) -> float:
    """A finite number, or -1 for any other text."""
    try:
        number = default if text is None else float(text)
    except ValueError:
        return -1.0
    return number if isfinite(number) else -1.0
