"""Questions beyond one machine and one plan, as a person types them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from autoplan.cli import main

SMALL = "--gbs 4 --seq-len 32"


def run(words: str) -> int:
    return main(shlex.split(words))


def document(capsys, words: str) -> dict:
    assert run(f"{words} --json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def plans(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("plans")
    paths = []
    for pins in ("dp=2,zero=3", "tp=2"):
        paths.append(str(folder / f"{len(paths)}.json"))
        assert run(f"simulate tiny-llama cpu-host:2 --pin {pins} {SMALL} -o {paths[-1]} -q") == 0
    return paths


def test_several_machines_have_a_row_each(capsys, tmp_path):
    pins = "--pin dp=2,zero=1,micro_batch=1,recompute=none"
    words = f"search tiny-llama rtx4090:2 h100-80g:2 {pins} {SMALL}"
    answer = document(capsys, f"{words} -o {tmp_path / 'best.json'}")
    assert set(answer) == {"plans", "search", "machines"}
    rows = answer["machines"]
    assert [row["hardware"] for row in rows] == list(answer["search"])
    assert [plan["hardware"]["embedded"]["name"] for plan in answer["plans"]] == [
        row["hardware"].partition(":")[0] for row in rows
    ]
    times = [plan["predicted"]["step_time_s"] for plan in answer["plans"]]
    assert times == sorted(times)
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["predicted"] == answer["plans"][0]["predicted"]
    assert run(f"{words} --goal energy") == 0
    screen = capsys.readouterr().out
    assert "machines by energy" in screen
    assert "J/M tokens" in screen


def test_how_many_devices(capsys):
    words = f"search gpt2 cpu-host:2 {SMALL} --set device.memory=1900MiB --goal devices"
    answer = document(capsys, words)
    assert set(answer) == {"plans", "search", "ladder"}
    assert [rung["devices"] for rung in answer["ladder"]] == [1, 2, 4]
    fitting = [rung for rung in answer["ladder"] if rung["verdict"] != "no"]
    assert fitting[0]["host_bytes_per_node"] > 0
    assert answer["plans"][0]["predicted"]["step_time_s"] == fitting[0]["step_time_s"]
    assert run(words) == 0
    screen = capsys.readouterr().out
    assert "assumed:" in screen.splitlines()[0]
    assert "devices of those sizes" in screen


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--goal speed", "--goal"),
        ("--goal cost", "device.price_per_hour"),
        ("--goal devcies", "did you mean `devices`?"),
    ],
)
def test_goals_without_an_answer(capsys, words, named):
    assert run(f"search tiny-llama cpu-host:2 cpu-host:1 {SMALL} {words}") == 2
    assert named in capsys.readouterr().err


def test_every_machines_problems_are_reported_at_once(capsys):
    assert run("search tiny-lama rtx4900:2 a100-80g:12 --top 0") == 2
    err = capsys.readouterr().err
    for word in ("tiny-lama", "rtx4900", "a100-80g:12", "--top"):
        assert err.count(f"`{word}`") + err.count(f"{word}:") == 1


def test_a_shortlist_can_be_typed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = document(capsys, f"search tiny-llama rtx4090:2 {SMALL} --pin sp=true")
    shortlist = answer["shortlist"]
    assert 1 <= len(shortlist) <= 4
    assert len({repr(entry["parallel"]) for entry in shortlist}) == len(shortlist)
    command = shortlist[-1]["command"].partition(" && ")[0]
    assert "--global-batch-size 4" in command
    assert main(shlex.split(command)[1:]) == 0
    made = json.loads(Path(shlex.split(command)[-1]).read_text())
    assert made["parallel"]["dp"] == shortlist[-1]["parallel"]["dp"]
    assert made["parallel"]["zero"] == shortlist[-1]["parallel"]["zero"]


def test_explain_says_where_and_why(capsys, plans, tmp_path):
    report = tmp_path / "page.html"
    words = f"explain {plans[0]} --why-not tp=2 --measured step_time=1h,memory=1GiB"
    assert run(f"{words.replace('1h', '3s')} --report {report}") == 0
    out, err = capsys.readouterr()
    for word in ("seconds busy", "10 % better", "why not tp=2", "time by part", "outside the"):
        assert word in out
    assert f"wrote {report}" in err
    text = report.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "<svg" in text
    assert "seconds busy" in text
    assert run(words) == 2
    assert "--measured" in capsys.readouterr().err


def test_a_configuration_is_explained(capsys, tmp_path):
    """What was read, what was not, whether the run was good, and what would be better."""
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc_per_node 2 pretrain_gpt.py --tensor-model-parallel-size 2 "
        "--micro-batch-size 1 --global-batch-size 4 --seq-length 32 --sideways 3 "
        "--overlap-grad-reduce\n"
    )
    words = f"explain --config {script} tiny-llama cpu-host --measured step_time=30s"
    assert run(words) == 0
    out, _ = capsys.readouterr()
    for word in (
        f"(assumed: 2 devices, as {script} starts",
        f"{script} (megatron): tp=2",
        "not understood: --sideways 3",
        "without a price: --overlap-grad-reduce",
        "the run is slower than this configuration should be: 30 s",
        "with the same model, machine, batch and software",
        "a better plan takes",
        "if it does as this run did",
    ):
        assert word in out
    explanation = document(capsys, words)["explanation"]
    assert set(explanation) == {"operators", "gains", "measured", "config", "better"}
    assert explanation["config"]["run"]["verdict"] == "slower"
    assert run(f"explain --config {script} cpu-host") == 2
    assert "MODEL" in capsys.readouterr().err
    assert run(f"explain --config {tmp_path / 'none.sh'} cpu-host") == 2
    assert "no such file" in capsys.readouterr().err


def test_explanations_are_documents(capsys, plans):
    answer = document(capsys, f"explain {plans[0]} --why-not tp=2 --measured mfu=10%")
    explanation = answer["explanation"]
    assert set(explanation) == {"operators", "gains", "why_not", "measured"}
    assert answer["predicted"]["step_time_s"] > 0
    other = explanation["why_not"]["predicted"]["step_time_s"]
    assert run(f"simulate {plans[1]} --json") == 0
    alone = json.loads(capsys.readouterr().out)["predicted"]["step_time_s"]
    assert other == pytest.approx(alone, rel=0.5)


def test_compare_shows_what_differs(capsys, plans, tmp_path):
    report = tmp_path / "page.html"
    assert run(f"compare {plans[0]} {plans[1]} --report {report}") == 0
    screen = capsys.readouterr().out
    assert "in the words of pins" in screen
    assert report.read_text().count("<svg") == 2
    answer = document(capsys, f"compare {plans[0]} {plans[1]}")
    assert answer["parallel"]["tp"] == [1, 2]
    assert answer["inputs"] == {}
    assert run(f"compare {plans[0]}") == 2
    assert "at least two" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["search tiny-llama cpu-host:2", "simulate tiny-llama cpu-host:2"]
)
def test_reports_are_pages_with_a_timeline(capsys, tmp_path, words):
    report = tmp_path / "page.html"
    pins = "--pin dp=2,zero=1,micro_batch=1,recompute=none"
    assert run(f"{words} {SMALL} {pins} --report {report} -q") == 0
    assert capsys.readouterr() == ("", "")
    assert "<svg" in report.read_text()
    assert run(f"{words} {SMALL} {pins} --report {tmp_path} -q") == 2
    assert list(tmp_path.iterdir()) == [report]
