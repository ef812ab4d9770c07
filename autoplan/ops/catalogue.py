"""The catalogue: every operator family by name."""

from __future__ import annotations

from autoplan.ops import attention, matrix, norm, pointwise, token, update
from autoplan.ops.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (matrix, attention, norm, pointwise, token, update)
    for family in module.FAMILIES
}
