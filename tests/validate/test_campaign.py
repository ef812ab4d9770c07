"""Plans in turn: what is sampled, in which order it is visited, and what visits amount to."""

from __future__ import annotations

from collections import Counter
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from autoplan.validate.campaign import (
    QUIET_CORES,
    Visit,
    balanced_sample,
    settled,
    shuffled_rounds,
)

seconds = st.lists(st.floats(1e-3, 10), min_size=1, max_size=4).map(tuple)
visits = st.lists(
    st.builds(Visit, seconds, st.floats(0, 2)), min_size=1, max_size=6
)  # fmt: skip


@given(visits)
def test_disturbed_visits_count_only_where_there_are_no_others(each):
    quiet = [visit for visit in each if visit.elsewhere <= QUIET_CORES]
    found = settled(each)
    assert found.disturbed == (not quiet)
    assert found.step_time == median(s for visit in quiet or each for s in visit.seconds)


@given(visits)
def test_one_wild_visit_among_many_alike_changes_nothing(each):
    alike = [Visit((1.0, 1.0), 0.0)] * 5
    wild = Visit((1e3,), 0.0)
    assert settled([*alike, wild]).step_time == 1.0


def test_spread_is_that_of_visits():
    found = settled([Visit((1.0, 1.0), 0.0), Visit((1.2, 1.2), 0.0), Visit((9.0,), 1.0)])
    assert abs(found.spread - 0.2 / 1.1) < 1e-12
    assert settled([Visit((), 0.0), Visit((2.0,), 0.0)]).step_time == 2.0


def test_every_round_visits_everything_once_and_orders_differ():
    rounds = shuffled_rounds(20, 4, seed=1)
    assert [sorted(order) for order in rounds] == [list(range(20))] * 4
    assert len(set(rounds)) == 4
    assert rounds == shuffled_rounds(20, 4, seed=1)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9), min_size=1),
    st.integers(0, 60),
    st.integers(0, 99),
)
def test_a_sample_is_as_even_as_sizes_allow(sizes, count, seed):
    strata = {kind: [(kind, k) for k in range(size)] for kind, size in sizes.items()}
    drawn = balanced_sample(strata, count, seed)
    assert len(drawn) == len(set(drawn)) == min(count, sum(sizes.values()))
    by_kind = Counter(kind for kind, _ in drawn)
    most = max(by_kind.values(), default=0)
    for kind, size in sizes.items():
        assert by_kind[kind] >= min(size, most - 1)
    assert drawn == balanced_sample(strata, count, seed)
