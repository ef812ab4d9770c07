"""Recorded runs: three notations are one answer, and all that is wrong comes at once."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from autoplan.errors import InputError
from autoplan.files.run_format import ALIASES, PATHS, RUN_FORMAT
from autoplan.files.runs import read_runs

ROW = {
    "id": "a-1",
    "source": "a paper, Table 2",
    "read_or_remembered": "read",
    "model": {
        "name": "LLaMA-13B", "n_layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 40,
        "head_dim": 128, "ffn": 13824, "gated_ffn": True, "vocab": 32000, "experts": None,
        "topk": None, "shared_experts": None, "moe_ffn": None, "dense_layers": None,
        "tied_embeddings": False,
    },
    "seq_len": 2048, "global_batch": 512, "micro_batch": 2,
    "hardware": {"device": "A100-80GB", "count": 64, "per_node": 8, "intra": "NVLink3",
                 "inter": None},
    "parallel": {"tp": 4, "pp": 2, "vpp": 1, "cp": 1, "ep": None, "dp": 8, "sp": True,
                 "zero_stage": 1, "fsdp": False},
    "recompute": "none", "precision": "bf16", "schedule": "1f1b",
    "measured": {"step_time_s": 8.0, "tflops_per_device": None, "tokens_per_s_per_device": 2048,
                 "mfu": 0.51, "peak_mem_gib": 61},
    "derived": ["tokens_per_s_per_device"], "flops_convention": None, "flags": [],
    "notes": "kernel: flash_attention2 + RMS kernel; batch inferred",
}  # fmt: skip


def read(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return read_runs(path)


def problems(tmp_path, name, text):
    with pytest.raises(InputError) as caught:
        read(tmp_path, name, text)
    return caught.value.problems


def changed(**sections):
    """The row with some keys of its sections, or whole values, replaced."""
    row = dict(ROW)
    for name, value in sections.items():
        row[name] = {**ROW[name], **value} if isinstance(value, dict) else value
    return row


def flat(row):
    """The row as the cells of a table."""
    cells = {}
    for name, value in row.items():
        section = value.items() if isinstance(value, dict) else [("", value)]
        for key, item in section:
            item = ";".join(item) if isinstance(item, list) else item
            cells[f"{name}.{key}" if key else name] = "" if item is None else str(item)
    return cells


def table(*rows):
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(flat(rows[0])))
    writer.writeheader()
    writer.writerows(map(flat, rows))
    return stream.getvalue()


def test_a_row_is_read_as_it_stands(tmp_path):
    (run,) = read(tmp_path, "a.jsonl", json.dumps(ROW))
    assert (run.id, run.source, run.name) == ("a-1", "a paper, Table 2", "LLaMA-13B")
    assert (run.shape.layers, run.shape.ffn, run.shape.gated, run.shape.tied) == (
        40, 13824, True, False,
    )  # fmt: skip
    assert (run.shape.experts, run.inter, run.parallel["ep"]) == (None, None, None)
    assert (run.device, run.devices, run.per_node) == ("A100-80GB", 64, 8)
    assert (run.parallel["tp"], run.parallel["sp"], run.parallel["zero_stage"]) == (4, True, 1)
    assert run.kernel == "flash_attention2 + RMS kernel"
    assert run.stack is None
    assert not run.oom


def test_lines_lists_and_tables_are_one_answer(tmp_path):
    rows = [ROW, changed(id="a-2", measured={"step_time_s": 7.5}, flags=["oom", "other"])]
    lines = read(tmp_path, "r.jsonl", "\n\n".join(map(json.dumps, rows)))
    assert lines[1].oom
    assert lines[1].flags == ("oom", "other")
    assert read(tmp_path, "r.json", json.dumps(rows, indent=2)) == lines
    assert read(tmp_path, "r.csv", table(*rows)) == lines
    semicolons = table(*rows).replace(",", "\t")
    assert read(tmp_path, "t.csv", semicolons.replace("a paper\t", "a paper,")) == lines
    assert read(tmp_path, "one.json", json.dumps(ROW, indent=1)) == lines[:1]


def test_short_names_are_the_keys(tmp_path):
    (run,) = read(
        tmp_path,
        "mine.csv",
        "model,layers,device,devices,tp,pp,micro_batch,global_batch,seq_len,step_time_s\n"
        "llama-2-7b,32,h100,8,2,,1,64,4096,3.5\n",
    )
    assert (run.id, run.source, run.name, run.shape.layers) == ("mine-1", "mine", "llama-2-7b", 32)
    assert (run.devices, run.parallel["tp"], run.parallel["pp"]) == (8, 2, None)
    assert (run.measured.step_time_s, run.step_time) == (3.5, 3.5)
    assert set(ALIASES.values()) <= set(PATHS)


@pytest.mark.parametrize(
    ("measured", "derived", "seconds"),
    [
        ({"step_time_s": 8.0}, ["tokens_per_s_per_device"], 8.0),
        ({"step_time_s": 7.9}, ["step_time_s"], 8.0),
        ({"step_time_s": None}, [], 8.0),
        ({"step_time_s": None, "tokens_per_s_per_device": None}, [], None),
    ],
)
def test_the_step_time_is_what_was_measured(tmp_path, measured, derived, seconds):
    """2048 tokens/s on each of 64 devices, 512 sequences of 2048: eight seconds."""
    (run,) = read(tmp_path, "a.jsonl", json.dumps(changed(measured=measured, derived=derived)))
    assert run.step_time == (pytest.approx(seconds) if seconds else None)
    assert replace(run, global_batch=None).step_time == run.measured.step_time_s


def test_everything_wrong_is_told_at_once_with_its_line(tmp_path):
    rows = [
        changed(parallel={"tp": "four"}, seq_len=None),
        changed(id="a-2", parallel={"zero_stag": 1}, nonsense=3),
        changed(id="a-3", hardware={"count": 0}, derived=["steptime_s"]),
        changed(id="a-4", measured=dict.fromkeys(ROW["measured"])),
        ROW,
        ROW,
    ]
    text = "\n".join(map(json.dumps, rows)) + "\n{\n[1]\n"
    found = {(p.source.rpartition(":")[2], p.field): p for p in problems(tmp_path, "r.jsonl", text)}
    assert set(found) == {
        ("1", "$.parallel.tp"), ("1", "$.seq_len"), ("2", "$.parallel.zero_stag"),
        ("2", "nonsense"), ("3", "$.hardware.count"), ("4", "measured"),
        ("6", "id"), ("7", "line 1, column 2"), ("8[0]", ""),
    }  # fmt: skip
    assert "zero_stage" in found["2", "$.parallel.zero_stag"].hint
    assert found["1", "$.seq_len"].allowed == "this field is required"
    derived = problems(tmp_path, "r.jsonl", json.dumps(changed(derived=["steptime_s"])))
    assert derived[0].hint == "did you mean `step_time_s`?"


def test_tables_say_which_line_and_column(tmp_path):
    text = (
        "tp,microbatch,devices,seq_len,step_time_s,sp\n"
        "2,1,8,4096,1.5,maybe\nx,1,8,4096,1.5,true\n1,2\n"
    )
    found = [
        (p.source.rpartition(":")[2], p.field, p.hint) for p in problems(tmp_path, "r.csv", text)
    ]
    assert found == [
        ("1", "microbatch", "did you mean `micro_batch`?"),
        ("2", "$.parallel.sp", ""),
        ("3", "$.parallel.tp", ""),
        ("4", "", ""),
    ]


def test_what_many_lines_have_in_common_is_told_once(tmp_path):
    rows = [changed(id=f"a-{i}", colour="red") for i in range(50)]
    (problem,) = problems(tmp_path, "r.jsonl", "\n".join(map(json.dumps, rows)))
    assert problem.source.endswith(":1")
    assert "49 more" in problem.found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty.jsonl", ""), ("empty.json", "[]"), ("empty.csv", ""), ("head.csv", "tp,seq_len\n"),
        ("number.json", "3"), ("nan.jsonl", json.dumps(ROW).replace("8.0", "NaN")),
        ("twice.jsonl", json.dumps(changed(tp=4))),
        ("not.jsonl", json.dumps(changed(parallel=[1]))),
        ("columns.csv", "tp,parallel.tp,devices,seq_len,mfu\n1,1,1,1,0.5\n"),
        ("quote.csv", 'tp,seq_len\n"1,2\n'),
        ("mfu.jsonl", json.dumps(changed(measured={"mfu": 51}))),
        ("float.csv", "devices,seq_len,mfu\n1.5,1,0.5\n"),
    ],
)  # fmt: skip
def test_whatever_cannot_be_read_is_refused(tmp_path, name, text):
    assert problems(tmp_path, name, text)


def test_no_file_is_refused(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(InputError):
            read_runs(path)


def test_the_format_tells_every_key():
    missing = [path for path in PATHS if path.rpartition(".")[2] not in RUN_FORMAT]
    assert missing == ["read_or_remembered"]


def test_a_run_is_told_in_a_line(tmp_path):
    (run,) = read(tmp_path, "a.jsonl", json.dumps(changed(hardware={"device": None})))
    assert str(run) == (
        "a-1: LLaMA-13B on 64 x devices of an unknown kind, tp=4 pp=2 vpp=1 cp=1 dp=8 sp=True "
        "zero_stage=1"
    )
