"""Laws: parse(dump(noun)) == noun, and the written text is byte-stable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.files.data import bundled_names
from autoplan.files.hardware import dump_hardware, hardware_digest, parse_hardware
from autoplan.files.hf_config import load_model
from autoplan.files.machine_spec import load_hardware
from autoplan.files.model import dump_model, parse_model
from autoplan.files.plan import dump_plan, parse_plan
from autoplan.files.program import dump_program, parse_program
from autoplan.files.quantities import GB_PER_S, GIBIBYTES, GIGAFLOP, MICROSECONDS, TERAFLOPS
from autoplan.files.stack import dump_stack, load_stack, parse_stack
from autoplan.files.text import digest, format_json, read_json, write_json
from autoplan.files.workload import dump_workload, parse_workload
from autoplan.ir.plan import Plan, Schedule, Strategy
from autoplan.ir.workload import PRECISIONS
from tests.files.examples import plan, program, workload

STACKS = "hardware_profiles/stacks"


@pytest.mark.parametrize("name", bundled_names("models"))
def test_every_bundled_model_comes_back(name: str) -> None:
    config = load_model(name)
    assert parse_model(dump_model(config), "plan.json") == config


@pytest.mark.parametrize("name", bundled_names("hardware_profiles"))
def test_every_bundled_machine_comes_back(name: str) -> None:
    for overrides in ({}, {"device.memory": "47.3GB", "device.launch": "3.7us"}):
        hardware = load_hardware(name, overrides)
        document = json.loads(format_json(dump_hardware(hardware)))
        assert parse_hardware(document, "plan.json") == hardware
        assert hardware_digest(hardware) == digest(document)


@pytest.mark.parametrize("name", bundled_names(STACKS))
def test_every_bundled_stack_comes_back(name: str) -> None:
    stack = load_stack(name)
    assert parse_stack(json.loads(format_json(dump_stack(stack))), "plan.json") == stack


@pytest.mark.parametrize("unit", [GIBIBYTES, GB_PER_S, TERAFLOPS, GIGAFLOP, MICROSECONDS])
@given(value=st.floats(1e-9, 1e12))
@settings(max_examples=60, deadline=None)
def test_a_number_of_a_file_survives_its_unit(unit, value) -> None:
    base = unit.to_base(value)
    assert unit.to_base(unit.from_base(base)) == base


def test_workloads_come_back() -> None:
    plain = workload()
    mixed = replace(PRECISIONS["bf16_mixed"], gradient="bf16")
    for noun in (plain, replace(plain, precision=mixed, dropout=0.1, trainable=r"layers\.1\..*")):
        assert parse_workload(json.loads(format_json(dump_workload(noun))), "w.json") == noun


def test_a_plan_comes_back_with_what_is_written_for_people(tmp_path: Path) -> None:
    parallel, predicted = {"tp": 2}, {"step_time_s": 0.1 + 0.2}
    write_json(tmp_path / "plan.json", dump_plan(plan(), parallel, predicted, None, "0.1.0"))
    file = parse_plan(read_json(tmp_path / "plan.json"), "plan.json")
    assert file.plan == plan()
    assert (file.parallel, file.predicted, file.search) == (parallel, predicted, None)


def test_chunks_come_back_and_are_not_written_where_a_stage_is_one() -> None:
    whole = dump_plan(plan(), {}, None, None, "0")
    assert not any("chunk" in run for stage in whole["stages"] for run in stage["runs"])
    stages = tuple(
        replace(stage, runs=(stage.runs[0], replace(stage.runs[1], chunk=1)))
        for stage in plan().stages
    )
    chunked = replace(plan(), stages=stages, schedule=Schedule("interleaved", 2))
    document = json.loads(format_json(dump_plan(chunked, {}, None, None, "0")))
    assert parse_plan(document, "plan.json").plan == chunked
    assert chunked.chunks == 2
    assert [index for index, _ in chunked.virtual_stages] == [0, 1, 0, 1]


def test_a_digest_sees_content_only() -> None:
    assert digest({"a": 1, "b": [2.0]}) == digest({"b": [2], "a": 1.0})
    assert digest({"a": 1}) != digest({"a": 1.5})


def reordered(noun: Plan) -> Plan:
    """The same decisions, entered in another order."""

    def backwards(table):
        return dict(reversed(table.items()))

    strategies = {
        key: Strategy(s.block, backwards(s.splits), backwards(s.homes), s.saved, s.stored)
        for key, s in reversed(noun.strategies.items())
    }
    return replace(noun, strategies=strategies)


def test_the_text_of_a_plan_does_not_depend_on_the_order_of_entry() -> None:
    texts = {
        format_json(dump_plan(p, {}, None, None, "0")) for p in (plan(), plan(), reordered(plan()))
    }
    assert len(texts) == 1


def test_a_program_comes_back_as_the_same_text() -> None:
    text = format_json(dump_program(program()))
    assert format_json(dump_program(parse_program(json.loads(text), "program.json"))) == text
    again = parse_program(json.loads(text), "program.json").stages[0]
    assert again.actions == program().stages[0].actions
    assert again.segments["layer/F"].code == program().stages[0].segments["layer/F"].code
    assert again.resident == program().stages[0].resident


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=30,
    )
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_canonical_text_is_json_of_the_document(document) -> None:
    assert json.loads(format_json(document)) == document
