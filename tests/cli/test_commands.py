"""The commands, end to end on a tiny model: data on stdout, the rest on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoplan.cli import main

TINY = ["tiny-llama", "cpu-host:2", "--gbs", "4", "--seq-len", "32"]


@pytest.fixture(scope="module")
def plan_path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert main(["search", *TINY, "-o", str(path), "--quiet"]) == 0
    return path


def without_seconds(document):
    document["search"]["seconds"] = None
    return document


def test_search_prints_a_screen(capsys, tmp_path):
    path = tmp_path / "plan.json"
    assert main(["search", *TINY, "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    first = out.splitlines()[0]
    assert first.startswith(
        "tiny-llama on cpu-host:2, stack autoplan, fp32, batch 4 x 32 (assumed:"
    )
    assert "batch" not in first.partition("assumed")[2]
    for word in ("tokens/s/device", "plain choices", "step time", "in flight", "lower bound"):
        assert word in out
    assert "\x1b" not in out
    assert err == f"note: wrote {path}\nnote: next: autoplan run {path} --rehearse --verify\n"


def test_search_is_deterministic(plan_path, capsys):
    assert main(["search", *TINY, "--json", "--top", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert set(document) == {"plans", "search", "shortlist"}
    best = document["plans"][0]
    assert without_seconds(best) == without_seconds(json.loads(plan_path.read_text()))
    assert set(best["search"]) == {
        "candidates", "seconds", "lower_bound_s", "gap", "space", "refused", "baselines",
        "stopped_by",
    }  # fmt: skip


def test_search_writes_the_same_bytes(tmp_path):
    """In two processes whose hashes differ, but for the seconds that it took."""
    texts = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.json"
        command = [sys.executable, "-m", "autoplan", "search", *TINY, "-q", "-o", str(path)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, check=True, env=environment, timeout=60)
        texts.append(path.read_text())
    seconds = [json.loads(text)["search"]["seconds"] for text in texts]
    assert texts[0].replace(str(seconds[0]), "") == texts[1].replace(str(seconds[1]), "")


def test_quiet_says_nothing(capsys, plan_path):
    for words in (["--quiet", "simulate", str(plan_path)], ["simulate", str(plan_path), "-q"]):
        assert main(words) == 0
        assert capsys.readouterr() == ("", "")


def test_simulate_prints_the_plan_with_its_prediction(capsys, plan_path, tmp_path):
    trace = tmp_path / "trace.json"
    assert main(["simulate", str(plan_path), "--json", "--trace", str(trace)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["predicted"] == json.loads(plan_path.read_text())["predicted"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"X", "M"} == {event["ph"] for event in events}


def test_pins_make_a_plan_file(capsys, tmp_path):
    path = tmp_path / "plan.json"
    assert main(["simulate", *TINY, "--pin", "tp=2,zero=0", "-o", str(path)]) == 0
    assert "tp=2" in capsys.readouterr().out
    parallel = json.loads(path.read_text())["parallel"]
    assert (parallel["tp"], parallel["dp"], parallel["zero"]) == (2, 1, 0)


@pytest.mark.parametrize(
    "pins",
    [
        {"dp": 2, "tp": 2, "sp": True, "zero": 1, "micro_batch": 1},
        {"pp": 4, "schedule": "gpipe", "recompute": "full", "layers_per_stage": [1, 1, 1, 1]},
        {"tp": 2, "pp": 2, "sp": False, "vocab": False, "order": "tp-pp"},
    ],
)
def test_a_plan_is_described_as_it_was_pinned(capsys, pins):
    words = [f"--pin={key}={written(value)}" for key, value in pins.items()]
    assert main(["simulate", "tiny-llama", "cpu-host:4", *TINY[2:], *words, "--json"]) == 0
    parallel = json.loads(capsys.readouterr().out)["parallel"]
    assert {key: parallel[key] for key in pins} == pins


def written(value):
    return "+".join(map(str, value)) if isinstance(value, list) else str(value).lower()


def test_a_program_file_is_lowered_and_simulated(capsys, plan_path, tmp_path):
    program = tmp_path / "program.json"
    assert main(["lower", str(plan_path), "-o", str(program)]) == 0
    assert "stage 0:" in capsys.readouterr().out
    assert main(["simulate", str(program), "cpu-host:2", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["predicted"]
    planned = json.loads(plan_path.read_text())["predicted"]
    assert predicted["step_time_s"] == planned["step_time_s"]
    assert predicted["mfu"] is None
    assert main(["simulate", str(program)]) == 2
    assert "a machine after the program" in capsys.readouterr().err
    assert main(["run", str(program)]) == 2
    assert "found a program file, allowed: a plan file" in capsys.readouterr().err


def test_lower_prints_the_program(capsys, plan_path):
    assert main(["lower", str(plan_path)]) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1


@pytest.mark.parametrize("name", ["tiny-llama", "rtx4090:16", "megatron", ""])
def test_show_reads_names(capsys, name):
    assert main(["show", *filter(None, [name])]) == 0
    screen = capsys.readouterr().out
    assert name.partition(":")[0] in screen
    assert main(["show", *filter(None, [name]), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    if name == "tiny-llama":
        assert document["parameters_total"] == document["parameters_active"] == 180_800
        assert document["layers"] == 4
    if name == "rtx4090:16":
        assert document["devices"] == 16
        assert "datasheet" in screen


def test_show_reads_a_plan(capsys, plan_path):
    assert main(["show", str(plan_path)]) == 0
    assert "tiny-llama on cpu-host:2" in capsys.readouterr().out


def test_run_in_lockstep_verifies_and_reports(capsys, plan_path):
    words = ["run", str(plan_path), "--steps", "2", "--transport", "lockstep", "--json"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == "note: runs in fp64; the plan says fp32\n"
    report = json.loads(out)
    assert report["verified"] is True
    assert report["max_gradient_error"] < 1e-9
    assert len(report["loss"]) == len(report["measured"]["step_times_s"]) == 2
    assert report["measured"]["step_time_s"] > 0
    assert report["predicted"]["step_time_s"] > 0
    assert report["timeline"][0]["start"] >= 0
    counted = report["counted_peak_bytes"]
    assert counted["measured"] == counted["predicted"]


def test_run_on_processes_and_data(capsys, plan_path, tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("to be or not to be\n\n" * 50)
    assert main(["run", str(plan_path), "--data", str(data), "--precision", "fp32"]) == 0
    assert "verified: largest error of a gradient" in capsys.readouterr().out


def test_rehearsal(capsys, plan_path):
    assert main(["run", str(plan_path), "--rehearse"]) == 0
    out, err = capsys.readouterr()
    assert "verified:" in out
    assert "rehearsal:" in err


def test_a_mismatch_is_reported_and_ends_with_5(capsys, plan_path, monkeypatch):
    from autoplan.workflow import running

    execute = running._execute

    def wrong(*args):
        document, notes = execute(*args)
        failed = {"verified": False, "failures": ["gradient of layers.0.wq[0]"]}
        return {**document, **failed}, notes

    monkeypatch.setattr(running, "_execute", wrong)
    assert main(["run", str(plan_path), "--transport", "lockstep", "--json"]) == 5
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["error"]["exit_code"] == 5
    assert "gradient of layers.0.wq[0]" in err
