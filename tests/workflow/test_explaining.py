"""Where time goes adds up; gains are true; measurements meet the interval; plans are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import InputError
from autoplan.files.text import write_json
from autoplan.lower import lower
from autoplan.simulate import simulate
from autoplan.workflow import (
    Options,
    Question,
    load_plan,
    plan_compare,
    plan_document,
    plan_explain,
)
from autoplan.workflow.measured import compare_measured, parse_measured
from autoplan.workflow.verbs import find_plan
from autoplan.workflow.where import operator_of

QUESTION = Question(
    "tiny-llama", "cpu-host:4", pins=("tp=2,pp=2,zero=1",),
    options=Options(global_batch_size=8, seq_len=32),
)  # fmt: skip


@pytest.fixture(scope="module")
def explained():
    return plan_explain(QUESTION, "tp=1,pp=1", "step_time=1s")


def test_busy_seconds_are_those_of_the_breakdown(explained):
    """Where nothing overlaps, what operators take is what the stage spends but for waiting."""
    predicted = explained.target.priced.predicted
    for rows, stage in zip(explained.document["operators"], predicted["stages"], strict=True):
        spent = stage["breakdown_s"]
        communicating = sum(row["communication_s"] for row in rows)
        kinds = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
        assert communicating == pytest.approx(sum(spent[kind] for kind in kinds), rel=1e-6)
        computing = sum(row["compute_s"] for row in rows)
        assert computing <= (spent["compute"] + spent["optimizer"]) * (1 + 1e-9)


def test_collectives_have_axis_level_and_bytes(explained):
    rows = [row for stage in explained.document["operators"] for row in stage]
    entries = [entry for row in rows for entry in row["collectives"]]
    assert {entry["level"] for entry in entries} == {"rank"}
    assert all(entry["bytes"] > 0 and entry["times"] > 0 for entry in entries)
    for row in rows:
        seconds = sum(entry["seconds"] for entry in row["collectives"])
        assert seconds == pytest.approx(row["communication_s"])


def test_gains_are_those_of_a_better_machine(explained):
    plan, graph = explained.target.priced.plan, explained.target.priced.graph
    level = plan.hardware.levels[0]
    better = replace(plan.hardware, levels=(replace(level, bandwidth=1.1 * level.bandwidth),))
    wanted = simulate(lower(graph, plan), better, plan.stack).step_time
    gains = {gain["better"]: gain for gain in explained.document["gains"]}
    assert gains["bandwidth of rank"]["step_time_s"] == wanted
    assert all(gain["faster"] > -1e-9 for gain in gains.values())
    assert sum(gain["faster"] for gain in gains.values()) <= 0.1


def test_why_not_adds_up_by_part(explained):
    why_not = explained.document["why_not"]
    ours, other = explained.target.priced.timeline.step_time, explained.other.timeline.step_time
    assert why_not["parallel"]["dp"] == 4
    assert sum(row["difference"] for row in why_not["time"]) == pytest.approx(other - ours)
    assert why_not["slower"] == pytest.approx(other / ours - 1)
    lines = sum(row["other"] for row in why_not["memory"])
    assert lines == explained.other.predicted["peak_memory_bytes"]


def test_the_other_plan_takes_over_what_was_decided():
    """But not what a plan without replicas or stages could not decide."""
    question = replace(QUESTION, pins=("dp=4,zero=3,recompute=full,micro_batch=2",))
    other = plan_explain(question, "tp=2").document["why_not"]["parallel"]
    assert (other["dp"], other["zero"], other["recompute"], other["micro_batch"]) == (
        2,
        3,
        "full",
        2,
    )
    assert other["vocab"]
    halved = plan_explain(QUESTION, "pp=1").document["why_not"]["parallel"]
    assert (halved["tp"], halved["pp"], halved["dp"]) == (2, 1, 2)
    piped = replace(QUESTION, pins=("pp=4",))
    assert plan_explain(piped, "dp=4").document["why_not"]["parallel"]["zero"] == 1


def test_why_not_an_impossible_plan_is_answered():
    reasons = plan_explain(QUESTION, "tp=3").document["why_not"]["refused"]
    assert "tp=3" in reasons[0]


def test_bad_pins_and_measurements_are_reported_together():
    question = replace(QUESTION, machine="cpu-hots:4")
    with pytest.raises(InputError) as error:
        plan_explain(question, "tq=3", "step_time=fast,mfu=nan,speed=3,mfu=0.4,mfu=0.5")
    sources = [problem.source for problem in error.value.problems]
    assert sources.count("--measured") == 5
    assert "--why-not" in sources
    assert "hardware" in sources


@pytest.mark.parametrize(
    ("name", "value"),
    [("step_time", 1.0), ("mfu", 1.0), ("tokens_per_s", 1.0), ("memory", 1.0)],
)
def test_the_prediction_itself_is_inside_its_interval(name, value):
    priced = find_plan(QUESTION).priced
    keys = {"step_time": "step_time_s", "memory": "peak_memory_bytes"}
    predicted = priced.predicted[keys.get(name, name)]
    (row,) = compare_measured(priced, {name: predicted})
    assert row["within"]
    assert row["difference"] == 0
    (far,) = compare_measured(priced, {name: 10 * predicted})
    assert not far["within"]


def test_a_part_that_explains_a_gap_makes_it_up():
    priced = find_plan(QUESTION).priced
    seconds = priced.predicted["step_time_s"]
    (row,) = compare_measured(priced, {"step_time": 1.5 * seconds})
    for part in row["explanations"]:
        grown = part["predicted"] * (part["factor"] - 1)
        assert grown == pytest.approx(0.5 * seconds)
    factors = [part["factor"] for part in row["explanations"]]
    assert factors == sorted(factors)


def test_measurements_are_read_in_their_units():
    assert parse_measured("step_time=1.5ms, MFU=45%,memory=2GiB,tokens-per-s=1e4") == {
        "step_time": 0.0015, "mfu": 0.45, "memory": 2 << 30, "tokens_per_s": 1e4,
    }  # fmt: skip


def test_values_belong_to_operators():
    block = find_plan(QUESTION).priced.graph.blocks["layer"]
    for register, operator in (
        ("attended", "attention"),
        ("d.w_q", "q"),
        ("d.mlp_norm.out@up", "up"),
        ("d.attention_norm.out+2", "attention_norm"),
        ("d.x", "boundary"),
    ):
        assert operator_of(register, block) == operator


def test_equal_plans_do_not_differ(tmp_path):
    paths = []
    for name, pins in (("a", "tp=2,zero=1"), ("b", "tp=2,zero=1"), ("c", "tp=1,zero=3")):
        priced = find_plan(replace(QUESTION, pins=(pins,))).priced
        paths.append(str(tmp_path / f"{name}.json"))
        write_json(paths[-1], plan_document(priced))
    same = plan_compare(paths[:2])
    assert (same.inputs, same.parallel, same.decisions) == ({}, {}, {})
    other = plan_compare([paths[0], paths[2]])
    assert other.parallel["tp"] == [2, 1]
    assert other.parallel["zero"] == [1, 3]
    assert not other.inputs
    assert any(key.startswith("strategies.layer.splits.q") for key in other.decisions)
    fastest = min(plan["slower"] for plan in other.document["plans"])
    assert fastest == 0


def test_comparing_needs_two_plan_files(tmp_path):
    with pytest.raises(InputError) as error:
        plan_compare([str(tmp_path / "none.json")])
    assert len(error.value.problems) == 2


def test_memory_while_loading_is_parameters_and_the_largest_tensor(tmp_path):
    priced = find_plan(QUESTION).priced
    program = lower(priced.graph, priced.plan)
    framework = priced.plan.stack.constants["framework_bytes"]
    for stage, memory in zip(program.stages, priced.predicted["memory"], strict=True):
        resident = [s for s in stage.resident if s.source[0] in ("parameter", "master")]
        own = sum(spec.register.nbytes for spec in resident)
        assert own + framework < memory["load_peak"] <= 3 * own + framework
        assert memory["first_step_peak"] <= priced.predicted["peak_memory_bytes"]
        assert memory["host"] > 0
    path = tmp_path / "plan.json"
    write_json(path, plan_document(priced))
    assert load_plan(path).warnings == ()
