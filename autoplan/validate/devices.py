"""Which hardware profile does the name of a device mean, as vendors and tools print it?

A name is words in any order and spelling: `NVIDIA A100-SXM4-80GB`, `H100 SXM5 80GB`, `TPU v5 lite`.
Makers, product lines and the usual form of a board say nothing that tells profiles apart and are
dropped; sizes of memory are written one way; what is left must name a profile, whole. A word that
is left over is another machine: boards for PCIe have no switch between them, an `RTX 4090 D` is no
`RTX 4090`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autoplan.files.data import bundled_names
from autoplan.files.machine_spec import FOLDER, load_hardware
from autoplan.units import GIB

USUAL: Mapping[str, str] = {
    "a100": "a100-80g", "h100": "h100-80g", "h800": "h800-80g", "a800": "a800-80g",
    "v100": "v100-16g", "4090": "rtx4090", "3090": "rtx3090", "tpu-v5": "tpu-v5p",
    "ascend-910c": "cloudmatrix-384",
}  # fmt: skip
"""Name without a size of memory -> the profile that it usually means, where several exist or the
profile is called after a whole machine. JAX prints `TPU v5` for a v5p."""
SAME: tuple[tuple[str, str], ...] = (
    (r"\b(v\d(?:e|p)?)-\d+\b", r"\1"),
    (r"(\d)[ _-]*gi?b\b", r"\1g"),
    (r"\b(?:tpu[ _-]*)?v(\d)[ _-]*(?:lite(?:pod)?|e)\b", r"tpu-v\1e"),
    (r"\b(?:tpu[ _-]*)?v(\d)(p?)\b", r"tpu-v\1\2"),
    (r"\brtx[ _-]*(\d{4})", r"rtx\1"),
    (r"\b(?:ascend[ _-]*)?910([bc])\d?\b(?: *\(a3\))?", r"ascend-910\1"),
)
"""Pattern of spellings that mean the same -> one spelling. A digit behind `910B` is a bin of it;
the number behind `v6e` is that of a slice's devices."""
SILENT = re.compile(
    r"nvidia|amd|google|huawei|cloud|tesla|geforce|instinct|gpu|hgx|dgx|sxm\d?|oam|ac|hbm\d?e?"
)
"""Words that tell no two profiles apart."""
BOARD = re.compile(r"pcie?|nvl")
"""Words of boards whose devices no switch joins."""
MEMORY = re.compile(r"(\d+)g")
LABEL = 0.08
"""Share by which a label may differ from what a profile counts as memory: decimal units, and what
drivers keep."""


def profile_named(name: str) -> str | None:
    """The bundled profile that a printed name of a device means, or None."""
    return _profile(_words(name))


def board_of(name: str) -> str | None:
    """The profile of the same device on a board with a switch, where the name says it has none."""
    words = _words(name)
    rest = [word for word in words if not BOARD.fullmatch(word)]
    return _profile(rest) if len(rest) < len(words) else None


def _words(name: str) -> list[str]:
    text = name.strip().lower()
    for pattern, spelling in SAME:
        text = re.sub(pattern, spelling, text)
    words = re.sub(r"[\s_/,()]+", "-", text).split("-")
    return [word for word in words if word and not SILENT.fullmatch(word)]


def _profile(words: list[str]) -> str | None:
    """The profile of these words: by its own name, by what it usually means, by its memory."""
    names = bundled_names(FOLDER)
    name = "-".join(words)
    found = name if name in names else USUAL.get(name)
    sizes = [match for word in words if (match := MEMORY.fullmatch(word))]
    if found or not sizes:
        return found
    bare = _profile([word for word in words if not MEMORY.fullmatch(word)])
    if bare is None:
        return None
    stated = int(sizes[0][1]) * GIB
    return bare if abs(load_hardware(bare).device.memory / stated - 1) <= LABEL else None
