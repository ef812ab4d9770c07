"""What is best: by time, memory, money and energy; one row a machine."""

from __future__ import annotations

import pytest

from autoplan.errors import InfeasibleError, InputError
from autoplan.files.machine_spec import load_hardware
from autoplan.workflow import Options, Question, plan_search, rank_machines
from autoplan.workflow.goals import NEAR, goal_problems, score

TINY = Options(seq_len=32)
PLAIN = ("dp=-1,zero=1,micro_batch=1,recompute=none",)
MODEL = Question("tiny-llama", pins=PLAIN, options=TINY)


def test_machines_are_ranked_about_one_batch():
    ranking = rank_machines(MODEL, ["rtx4090:2", "a100-80g:4", "h100-80g:4"], top=1)
    batches = {machine.inputs.workload.global_batch_size for machine in ranking.machines}
    assert batches == {16}
    assert "batch 16" in ranking.machines[0].inputs.assumed
    scores = [score(answer.plans[0], "time") for answer in ranking.answers]
    assert scores == sorted(scores)


def test_a_given_batch_stays():
    question = Question("tiny-llama", pins=PLAIN, options=Options(8, 32))
    ranking = rank_machines(question, ["rtx4090:2", "a100-80g:2"], top=1)
    assert {m.inputs.workload.global_batch_size for m in ranking.machines} == {8}
    assert not any("batch" in note for m in ranking.machines for note in m.inputs.assumed)


def test_a_machine_on_which_nothing_fits_has_a_row():
    pins = ("dp=2,zero=3,micro_batch=1,recompute=full",)
    question = Question("llama-2-7b", pins=pins, options=Options(2, 32))
    ranking = rank_machines(question, ["cpu-host:2", "h200:2"], top=1)
    rows = [machine.document("time") for machine in ranking.machines]
    assert [row["verdict"] for row in rows] == ["fits", "no"]
    assert "nothing fits" in rows[1]["refused"]


def test_where_nothing_fits_anywhere_every_machine_says_why():
    question = Question("gpt2", overrides=("device.memory=1200MiB",), options=Options(4, 32))
    with pytest.raises(InfeasibleError) as error:
        rank_machines(question, ["cpu-host:2", "rtx4090:2"], top=1)
    assert "cpu-core" in str(error.value)
    assert "rtx4090" in str(error.value)


def test_a_goal_names_the_number_it_lacks():
    machines = {"a": load_hardware("a100-80g"), "c": load_hardware("cloudmatrix-384")}
    assert [p.field for p in goal_problems("cost", machines)] == ["device.price_per_hour"] * 2
    assert [p.source for p in goal_problems("energy", machines)] == ["hardware c"]
    assert goal_problems("speed", machines)[0].allowed.startswith("time, memory")
    with pytest.raises(InputError, match="price_per_hour"):
        plan_search(Question("tiny-llama", "rtx4090:2", options=TINY), goal="cost")


def test_cost_and_energy_count_every_device_for_the_whole_step():
    question = Question(
        "tiny-llama", "rtx4090:2", ("device.price_per_hour=3.6", "device.power=100W"), None, PLAIN,
        TINY,
    )  # fmt: skip
    best = plan_search(question, 1, goal="cost").plans[0]
    seconds = best.predicted["step_time_s"] / (best.plan.workload.global_batch_size * 32)
    assert score(best, "cost") == pytest.approx(2 * seconds * 3.6 / 3600)
    assert score(best, "energy") == pytest.approx(2 * seconds * 100)


def test_memory_takes_the_leanest_of_those_near_the_fastest():
    question = Question("tiny-llama", "a100-80g:2", options=TINY)
    fastest = plan_search(question, 16).plans
    leanest = plan_search(question, 16, goal="memory").plans
    near = [p for p in fastest if score(p, "time") <= NEAR * score(fastest[0], "time")]
    assert score(leanest[0], "memory") == min(score(p, "memory") for p in near)
    assert len(leanest) == len(fastest)
