"""What each door refuses: text files, stacks, workloads, plans, programs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from autoplan.errors import InputError
from autoplan.files.hardware import dump_hardware, parse_hardware
from autoplan.files.machine_spec import load_hardware
from autoplan.files.plan import parse_plan
from autoplan.files.program import parse_program
from autoplan.files.program_text import format_action, parse_action, parse_register, parse_slot
from autoplan.files.stack import CONSTANTS, dump_stack, load_stack, parse_stack
from autoplan.files.text import parse_json, read_json, write_json
from autoplan.files.workload import parse_workload
from autoplan.ir.program import Action
from tests.files.examples import documents

DOCUMENTS = documents()


def complaints(read, *args: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        read(*args)
    return {p.field: str(p) for p in caught.value.problems}


def changed(kind: str, changes: dict[tuple[Any, ...], Any]) -> Any:
    """A copy of a valid document with other values at some paths."""
    document = copy.deepcopy(DOCUMENTS[kind])
    for path, value in changes.items():
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1,\n "b": }', "line 2, column 7"),
        ("", "line 1, column 1"),
        ('{"a": 1, "a": 2}', "the field twice"),
        ('{"a": [1, NaN], "b": -Infinity}', "$.a[1]"),
        ('{"a": [1, NaN], "b": -Infinity}', "$.b"),
        ('{"a": 1e999}', "$.a"),
        ('{"a": ' + "9" * 5000 + "}", "ordinary JSON"),
        ("[" * 100_000, "ordinary JSON"),
    ],
)
def test_text_that_is_not_strict_json(text: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json(text, "file.json")
    assert expected in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00\x80")
    for path, expected in (
        (tmp_path, "a folder"),
        (tmp_path / "absent.json", "no such file"),
        (tmp_path / "binary.json", "not text"),
        ("nul\0.json", "null"),
    ):
        with pytest.raises(InputError, match=expected):
            read_json(path)


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    write_json(target, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(target, {"a": float("nan")})
    assert read_json(target) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(InputError):
        write_json(tmp_path / "no" / "plan.json", {})


def test_hardware_problems_come_with_the_key_of_the_file() -> None:
    document = dump_hardware(load_hardware("rtx4090"))
    document["device"]["memory_gb"] = document["device"].pop("memory_gib")
    document["device"]["peak_tflops"]["bf17"] = 3
    document["levels"][1]["name"] = "gpu"
    document["levels"][2]["size"] = 2.5
    document["host"]["cores"] = {"value": 0, "evidence": "guessed"}
    found = complaints(parse_hardware, document, "h.json")
    assert "did you mean `memory_gib`?" in found["$.device.memory_gb"]
    assert {"$.levels[2].size", "$.host.cores.value", "$.host.cores.evidence"} <= set(found)
    twice = dump_hardware(load_hardware("rtx4090"))
    twice["levels"][1]["name"] = "gpu"
    twice["levels"][0] |= {"mesh": True, "torus": 2}
    found = complaints(parse_hardware, twice, "h.json")
    assert {"$.levels[1].name", "$.levels[0].torus"} <= set(found)


def test_stacks_name_known_constants_and_pins() -> None:
    assert set(load_stack("megatron").constants) == set(CONSTANTS)
    changes = {("constants", "overlap_contention"): 0.9, ("constants", "pointwise_facto"): 1}
    found = complaints(parse_stack, changed("stack", changes), "s.json")
    assert "a number >= 1" in found["$.constants.overlap_contention"]
    assert "$.constants.pointwise_facto" in found
    wrong = changed("stack", {("defaults", "shedule"): "1f1b", ("restricts", "zero"): [[1]]})
    found = complaints(parse_stack, wrong, "s.json", "$", ("schedule", "zero", "sp", "recompute"))
    assert "did you mean `schedule`?" in found["$.defaults.shedule"]
    assert "$.restricts.zero[0]" in found


@pytest.mark.parametrize(
    "rule",
    ["divides heads", "at most micro_batches if schedule=1f1b", "divides seq_len/16 if cp>1",
     "divides or repeats kv_heads unless layers_per_stage"],
)  # fmt: skip
def test_rules_of_stacks_are_read_and_written(rule: str) -> None:
    document = changed("stack", {("restricts", "tp"): [1, 2, rule], ("habits",): ["pad_vocab_64"]})
    stack = parse_stack(document, "s.json")
    assert stack.restricts["tp"] == (1, 2)
    assert rule in map(str, stack.rules)
    assert parse_stack(dump_stack(stack), "s.json") == stack


@pytest.mark.parametrize(
    "rule",
    ["divides tails", "divides heads/0", "at most layers if pp>two", "divids heads",
     "divides heads if", "divides heads or so"],
)  # fmt: skip
def test_rules_that_mean_nothing_are_refused(rule: str) -> None:
    document = changed("stack", {("restricts", "tp"): [rule], ("habits",): ["pad_vocab_63"]})
    found = complaints(parse_stack, document, "s.json")
    assert "did you mean `pad_vocab_64`?" in found["$.habits[0]"]
    assert "$.restricts.tp[0]" in found


def test_workload_problems_come_at_once() -> None:
    document = changed(
        "workload",
        {
            ("global_batch_size",): 0,
            ("precision",): {"name": "bf16_mixd"},
            ("optimizer", "name"): "adam",
            ("optimizer", "hyper", "beta1"): 1.0,
            ("trainable",): "layers.(",
            ("dropout",): 1,
        },
    )
    assert set(complaints(parse_workload, document, "w.json")) == {
        "$.global_batch_size", "$.optimizer.name", "$.optimizer.hyper.beta1", "$.trainable",
        "$.dropout",
    }  # fmt: skip
    wrong = changed("workload", {("precision",): "bf16_mixd"})
    found = complaints(parse_workload, wrong, "w.json")
    assert "did you mean `bf16_mixed`?" in found["$.precision.name"]


PLAN_CASES: list[tuple[dict[tuple[Any, ...], Any], str]] = [
    ({("schema_version",): 2}, "$.schema_version"),
    ({("schedule", "family"): "1f2b"}, "$.schedule.family"),
    ({("schedule", "micro_batches"): 3}, "$.schedule.micro_batches"),
    ({("stages", 0, "runs", 1, "strategy"): "layr"}, "$.stages[0].runs[1].strategy"),
    ({("stages", 1, "mesh", "offset"): 1}, "$.stages[1].mesh"),
    ({("stages", 1, "mesh", "offset"): 3}, "$.stages[1].mesh"),
    ({("stages", 0, "mesh", "axes"): ["rank:2@0"]}, "$.stages[0].mesh.axes[0]"),
    ({("stages", 0, "mesh", "axes"): ["r:999999999@1"]}, "$.stages[0].mesh"),
    ({("stages", 0, "layers"): 3}, "$.stages[0].layers"),
    ({("stages", 0, "devices"): "0-3"}, "$.stages[0].devices"),
    ({("strategies", "layer", "splits", "norm"): [None, None]}, "$.strategies.layer.splits.norm"),
    ({("strategies", "layer", "saved", "x"): "[S(b)"}, "$.strategies.layer.saved.x"),
    ({("strategies", "layer", "saved", "x"): "[]"}, "$.strategies.layer.saved.x"),
    ({("stored", "layer", "wq", "gradient"): "[B, B]"}, "$.stored.layer.wq.gradient"),
    ({("stored", "leyer"): {}}, "$.stored.leyer"),
    ({("lifetimes", "recompute"): [[False], [True, False]]}, "$.lifetimes.recompute"),
    ({("model", "embedded", "kv_heads"): 3}, "$.model.embedded.kv_heads"),
    ({("hardware", "embedded", "host", "cores"): 4}, "$.hardware.digest"),
    ({("workload", "seq_len"): -1}, "$.workload.seq_len"),
    ({("routes",): {"x": "y"}}, "$.routes.x"),
    ({("prediction",): {}}, "$.prediction"),
]


@pytest.mark.parametrize(("changes", "field"), PLAN_CASES)
def test_a_plan_with_a_wrong_field_is_refused_there(changes, field: str) -> None:
    assert field in complaints(parse_plan, changed("plan", changes), "plan.json")


def test_plan_problems_of_different_sections_come_at_once() -> None:
    changes = {
        ("schedule", "famly"): "gpipe",
        ("workload", "seq_len"): 0,
        ("hardware", "embedded", "device", "memory_gib"): -1,
        ("model", "embedded", "layers"): None,
    }
    document = changed("plan", changes)
    del document["schedule"]["family"]
    found = complaints(parse_plan, document, "plan.json")
    assert len(found) == 4
    assert "did you mean `family`?" in found["$.schedule.famly"]


PROGRAM_CASES: list[tuple[tuple[Any, ...], Any, str]] = [
    (("stages", 0, "actions", 1), "F layer/G i0 m0", "$.stages[0].actions[1]"),
    (("stages", 0, "actions", 1), "G layer/F i0 m0", "$.stages[0].actions[1]"),
    (("stages", 0, "actions", 2), "SEND (x) i0 m0 @1", "$.stages[0].actions[2]"),
    (
        ("stages", 0, "segments", "layer/F", "code", 0, "ins"),
        [9],
        "$.stages[0].segments.layer/F.code[0]",
    ),
    (
        ("stages", 0, "segments", "layer/F", "formals", 0, "register"),
        3,
        "$.stages[0].segments.layer/F.formals[0]",
    ),
    (
        ("stages", 0, "segments", "layer/F", "registers", 0),
        "x[2 64] fp31 activations",
        "$.stages[0].segments.layer/F.registers[0]",
    ),
    (("stages", 0, "feeds", "x", "layout"), "[B, B]", "$.stages[0].feeds.x.layout"),
    (("stages", 0, "feeds", "x", "slot"), "x i-1", "$.stages[0].feeds.x.slot"),
]


@pytest.mark.parametrize(("path", "value", "field"), PROGRAM_CASES)
def test_a_program_with_a_wrong_field_is_refused_there(path, value, field: str) -> None:
    assert field in complaints(parse_program, changed("program", {path: value}), "program.json")


@pytest.mark.parametrize(
    "action",
    [
        Action("F", "layer/B.first", 3, 0),
        Action("SEND", "", 3, 0, 1, ("x", "d.x")),
        Action("GATHER", "layer/G", 7),
        Action("FREE", "layer/F", -1, 2, -1, ("x",)),
        Action("STEP"),
    ],
)
def test_action_texts_parse_back(action: Action) -> None:
    assert parse_action(format_action(action)) == action


def test_texts_of_scalars_and_bare_slots() -> None:
    assert parse_register("loss[] fp32 activations").shape == ()
    assert parse_slot("layers.3.wq") == ("layers.3.wq", -1, -1)
