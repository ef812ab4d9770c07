"""Law: the estimated lines follow from the counted ones and the stack's constants alone."""

from __future__ import annotations

from autoplan.cost import Beside, estimated_lines
from autoplan.ir.timeline import COUNTED_LINES, MEMORY_LINES
from tests.cost.machines import STACK


def test_estimated_lines_complete_the_account() -> None:
    counted = dict.fromkeys(COUNTED_LINES, 100)
    lines = estimated_lines(counted, Beside(300), STACK)
    assert (*COUNTED_LINES, *lines) == MEMORY_LINES
    assert lines == {"workspace": 300, "allocator": 30, "framework": 10**9}


def test_nothing_counted_leaves_the_framework() -> None:
    assert estimated_lines({}, Beside(0), STACK) == {
        "workspace": 0,
        "allocator": 0,
        "framework": 10**9,
    }
