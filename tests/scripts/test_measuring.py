"""Campaigns end to end on a tiny plan, and what they stand on: cores, namespaces, parts."""

from __future__ import annotations

import json
import subprocess
import sys
from time import sleep

import campaign
import pytest
from measuring import namespaces
from measuring.cores import Cores
from measuring.parts import by_kind, mean_parts, parts
from measuring.predicted import predict, write_models
from measuring.workloads import (
    KINDS,
    MODELS,
    WORKLOADS,
    Case,
    device_strata,
    namespace_cases,
    strata,
)

from autoplan.files.machine_spec import load_hardware
from autoplan.files.runs import read_runs
from autoplan.ir.timeline import Span

TINY = {**MODELS["llama-deep"], "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}


def test_work_of_given_processes_is_not_elsewhere():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        given, unknown = Cores([busy.pid]), Cores([])
        sleep(0.5)
        difference = unknown.elsewhere() - given.elsewhere()
    finally:
        busy.kill()
        busy.wait()
    assert 0.1 < difference < 1.1


SPANS = [
    Span(0, "compute", "F layer/F i0 m0", 0.0, 2.0),
    Span(0, "compute", "F layer/F i1 m0", 2.0, 3.0),
    Span(1, "compute", "B layer/B.first i1 m3", 0.0, 4.0),
    Span(1, "collective", "B layer/B.first i1 m3: all_reduce", 1.0, 2.0),
    Span(1, "receive", "RECV d.x i1 m3 @2", 4.0, 5.0),
]


def test_parts_are_seconds_and_calls_of_all_copies_over_ranks():
    assert parts(SPANS, [2, 1], 3) == {
        "F layer/F": pytest.approx((2.0, 4 / 3)),
        "B layer/B.first": pytest.approx((4 / 3, 1 / 3)),
        "B layer/B.first: all_reduce": pytest.approx((1 / 3, 1 / 3)),
        "RECV d.x @2": pytest.approx((1 / 3, 1 / 3)),
    }
    once = parts(SPANS, [1, 1], 2)
    assert parts(SPANS * 2, [1, 1], 2, steps=2) == {
        name: pytest.approx(part) for name, part in once.items()
    }
    assert mean_parts([once, once]) == once


def test_kinds_add_up_to_the_step():
    kinds = by_kind(parts(SPANS, [1, 1], 2), step_time=5.0)
    assert sum(part.seconds for part in kinds.values()) == pytest.approx(5.0)
    assert kinds["compute"].seconds == pytest.approx((3.0 + 4.0 - 1.0) / 2)
    assert kinds["all_reduce"] == pytest.approx((0.5, 0.5))
    assert kinds["send and bubble"] == pytest.approx((0.5, 0.5))


def test_every_kind_of_every_workload_has_cases():
    for ranks, kinds in KINDS.items():
        table = strata(ranks)
        assert len(table) == len(kinds) * len(WORKLOADS)
        assert all(case.ranks == ranks for cases in table.values() for case in cases)
    assert len(namespace_cases()) > 12
    assert len({case.group for cases in device_strata("cuda").values() for case in cases}) == 9


def test_every_case_of_two_nodes_is_legal(tmp_path):
    write_models(tmp_path, MODELS)
    link = namespaces.Link(25e6)
    machine = namespaces.write_machine(tmp_path, "cpu-host", link)
    seconds = {case.pins: predict(case, tmp_path, machine) for case in namespace_cases()}
    best = min(priced.predicted["step_time_s"] for priced in seconds.values())
    # The search minimises an estimate of the step, which the simulation refines.
    assert seconds[""].predicted["step_time_s"] <= 1.05 * best


def test_the_machine_of_two_nodes_is_read_back(tmp_path):
    path = namespaces.write_machine(tmp_path, "cpu-host", namespaces.Link(25e6))
    machine = load_hardware(path)
    here = load_hardware("cpu-host:2")
    assert [level.name for level in machine.levels] == ["gpu", "node"]
    assert machine.levels[1].bandwidth == 25e6
    assert machine.levels[1].shared_by == machine.devices_per_node == 2
    assert machine.levels[0].bandwidth == here.levels[0].bandwidth
    assert machine.evidence["levels.gpu.latency"] == here.evidence["levels.rank.latency"]


@pytest.mark.skipif(bool(namespaces.refusal()), reason=namespaces.refusal() or "possible")
def test_two_nodes_reach_each_other_and_leave_nothing():
    with namespaces.two_nodes(namespaces.Link(25e6)) as names:
        ping = "import socket; socket.create_server(('{}', 7))"
        for node, name in enumerate(names):
            inside = ["ip", "netns", "exec", name]
            program = ["python3", "-c", ping.format(namespaces.address(node))]
            subprocess.run([*inside, *program], check=True)
        shape = subprocess.run(
            ["tc", "-n", names[0], "qdisc", "show"], check=True, capture_output=True, text=True
        )
        assert "200Mbit" in shape.stdout
    left = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
    assert not any(name in left.stdout for name in names)


def test_a_refusal_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None)
    assert namespaces.refusal() == "no ip and no tc command (package iproute2)"


@pytest.mark.parametrize("words", [["--ranks", "3"], ["--ranks", "1;2"], ["--plans", "0"]])
def test_bad_arguments_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        campaign.main(words)
    assert ended.value.code == 2
    assert "allowed" in capsys.readouterr().err


def test_a_campaign_keeps_everything_that_judging_it_again_needs(tmp_path, monkeypatch, capsys):
    case = Case("tiny", 4, 16, 1, "dp=1,micro_batch=2")
    other = Case("tiny", 4, 16, 2, "tp=2")
    monkeypatch.setattr(campaign, "MODELS", {"tiny": TINY})
    monkeypatch.setattr(
        campaign, "strata", lambda ranks: {str(ranks): [case if ranks == 1 else other]}
    )
    folder = tmp_path / "campaign"
    words = ["--rounds", "2", "--steps", "1", "--extra", "0", "-o", str(folder)]
    assert campaign.main(words) == 0
    printed = capsys.readouterr().out
    assert "2 plans" in printed
    before = json.loads((folder / "predictions.json").read_text())["rows"]
    document = json.loads((folder / "results.json").read_text())
    assert [row["plan"] for row in document["rows"]] == [row["plan"] for row in before]
    for row in document["rows"]:
        assert len(row["measured"]["visits"]) == 2
        lines = row["plan"]["predicted"]["memory"]
        assert row["measured"]["counted_peak_bytes"] <= sum(
            value for stage in lines for value in stage.values() if isinstance(value, int)
        )
        assert {"F layer/F", "STEP layer/STEP"} <= row["measured"]["parts"].keys()
        assert row["predicted_parts"].keys() <= row["measured"]["parts"].keys() | {"GATHER"}
    runs = read_runs(folder / "runs.jsonl")
    assert [run.devices for run in runs] == [row["ranks"] for row in document["rows"]]
    assert [run.step_time for run in runs] == [
        row["measured"]["step_time_s"] for row in document["rows"]
    ]
    again = [*words, "--reprice", str(folder / "results.json")]
    assert campaign.main(again) == 0
    tables = printed.partition("\n")[2].strip()
    assert capsys.readouterr().out.strip() == tables
    assert campaign.main([*again, "--hardware", "no-such-machine"]) == 2
