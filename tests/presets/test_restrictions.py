"""Laws: a search takes what pins leave open, and says which pins it cannot search with."""

from __future__ import annotations

import pytest

from autoplan.errors import InputError
from autoplan.ir.machine import Stack
from autoplan.presets import parse_pins
from autoplan.presets.restrictions import named_grid, problems, schedules, within

ALTERNATING = Stack("other", habits=("selective_alternate",))


@pytest.mark.parametrize("pins", ["vpp=2", "pp=4,vpp=1|2", "dp=-1,vpp<=4", "pp=4,tp=2,vpp>=2"])
def test_chunks_are_taken_with_every_degree_only(pins):
    (problem,) = problems(parse_pins([pins]), 8 if "tp" in pins else 16)
    assert problem.field == "vpp"
    assert "not searched" in problem.hint


@pytest.mark.parametrize("pins", ["pp=4,dp=-1,vpp=2", "pp=4,tp=4,vpp=1|2|4", "vpp=1", ""])
def test_chunks_beside_every_degree_are_no_problem(pins):
    assert problems(parse_pins([pins]), 16) == []


def test_named_chunks_are_swept_with_all_that_has_a_name():
    rows = named_grid(parse_pins(["pp=4,dp=-1,vpp=1|2,zero=1"]), 8)
    found = {tuple(row[key].single for key in ("vpp", "micro_batch", "recompute")) for row in rows}
    assert found == {(v, m, r) for v in (1, 2) for m in (1, 2, 4, 8) for r in ("none", "full")}
    assert named_grid(parse_pins(["pp=4,dp=-1,vpp=1,zero=1"]), 8) == []


def test_one_chunk_interleaved_is_searched_as_what_it_is():
    assert schedules(parse_pins(["schedule=interleaved|gpipe|1f1b"])) == ("1f1b", "gpipe")
    assert schedules({}) == ("1f1b",)


def test_selective_recompute_is_searched_as_what_it_comes_to():
    pins = parse_pins(["recompute=selective|full"])
    everything = Stack("toy", restricts={"recompute": ("none", "selective", "full")})
    for stack in (Stack("toy"), everything):
        assert within(pins, stack)["recompute"].values == ("none", "full")
    assert "recompute" not in within({}, everything)
    with pytest.raises(InputError, match="none or full in a search of placements"):
        within(pins, ALTERNATING)
