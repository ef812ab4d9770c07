"""How many devices? Bounds that never refuse what fits, and verdicts by size."""

from __future__ import annotations

import pytest

from autoplan.errors import InfeasibleError
from autoplan.files.machine_spec import load_hardware
from autoplan.workflow import Options, Question, plan_search, rank_machines, resolve
from autoplan.workflow.ladder import climb, least_bytes, needed, sizes

SMALL = Options(global_batch_size=4, seq_len=64)


def rungs(machine: str, overrides: tuple[str, ...] = ()):
    return climb(resolve(Question("gpt2", machine, overrides, options=SMALL)))


def test_a_size_without_room_for_state_is_refused_without_a_search():
    """A 7B model in mixed precision takes 16 bytes a parameter and more: never one 80 GB device."""
    question = Question("llama-2-7b", "a100-80g:2", options=Options(4, 128))
    one, two = climb(resolve(question))
    assert (one.devices, one.verdict, one.found) == (1, "no", None)
    assert "at least 2 devices" in one.knob
    assert (two.devices, two.verdict) == (2, "fits")
    assert two.host_bytes is not None
    assert needed([one, two]) is two


@pytest.mark.parametrize(
    ("model", "count", "room"),
    [
        ("llama-2-7b", 1, False), ("llama-2-13b", 2, False), ("llama-2-13b", 4, True),
        ("llama-2-70b", 8, False), ("llama-3.1-70b", 16, False), ("llama-3.1-70b", 32, True),
    ],
)  # fmt: skip
def test_published_failures_of_full_fine_tuning_are_seen_at_once(model, count, room):
    """16 bytes a parameter and more, cut over all devices, against 80 GB."""
    asked = resolve(Question(model, f"a100-80g:{count}", options=Options(count, 128)))
    limit = asked.hardware.device.memory - asked.workload.memory_headroom
    assert (least_bytes(asked, count) <= limit) is room


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor"])
def test_the_bound_is_below_what_every_plan_needs(optimizer):
    options = Options(global_batch_size=8, seq_len=32, optimizer=optimizer)
    question = Question("tiny-llama", "cpu-host:2", options=options)
    asked = resolve(question)
    least = least_bytes(asked, asked.hardware.count)
    for priced in plan_search(question).plans:
        assert priced.predicted["peak_memory_bytes"] >= least


def test_sizes_fill_whole_units_and_end_with_the_machine():
    counts = [machine.count for machine in sizes(load_hardware("rtx4090:3x8"))]
    assert counts == [1, 2, 4, 8, 16, 24]
    dies = [machine.count for machine in sizes(load_hardware("cloudmatrix-384"))]
    assert dies == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768]


def test_beyond_the_machine_while_nothing_fits():
    climbed = rungs("cpu-host:2", ("device.memory=2000MiB",))
    assert [rung.devices for rung in climbed] == [1, 2, 4]
    assert [rung.verdict == "no" for rung in climbed] == [True, True, False]
    assert climbed[1].knob


def test_where_nothing_fits_at_all_it_is_infeasible():
    question = Question("gpt2", "cpu-host:2", ("device.memory=1100MiB",), options=SMALL)
    with pytest.raises(InfeasibleError, match="nor on 32 devices"):
        rank_machines(question, ["cpu-host:2"], "devices")


def test_a_ladder_answers_with_the_fewest_devices():
    question = Question("gpt2", overrides=("device.memory=2000MiB",), options=SMALL)
    ranking = rank_machines(question, ["cpu-host:2"], "devices")
    (machine,) = ranking.machines
    assert machine.answer is not None
    best = machine.answer.plans[0]
    assert best.devices == best.plan.hardware.count == 4
    document = machine.document("devices")
    assert document["score"] == 4
    assert [rung["devices"] for rung in document["ladder"]] == [1, 2, 4]
    assert document["ladder"][0]["step_time_s"] is None
