"""`validate`, end to end: recorded runs are predicted and scored, plans are run and compared."""

from __future__ import annotations

import json

import pytest

from autoplan.cli import main
from autoplan.units import GIB
from autoplan.workflow import judging

MODEL = {
    "name": "small", "n_layers": 4, "hidden": 512, "heads": 8, "ffn": 1408, "gated_ffn": True,
    "vocab": 32000,
}  # fmt: skip
ERRORS = {
    "rows", "median_abs_error", "p90_abs_error", "mean_abs_error", "max_abs_error", "bias",
    "within_10_percent", "within_20_percent",
}  # fmt: skip


def run(name: str, **more) -> dict:
    layout = {"tp": 1, "pp": 1, **more.pop("parallel", {})}
    return {
        "id": name, "model": MODEL, "seq_len": 1024, "global_batch": 32, "micro_batch": 1,
        "hardware": {"device": "A100-80GB", "count": 8, "per_node": 8}, "parallel": layout,
        "recompute": "none", "precision": "bf16", "measured": {"step_time_s": 0.1}, **more,
    }  # fmt: skip


RUNS = [
    *(run(f"here-{tp}", parallel={"tp": tp}) for tp in (1, 2, 4)),
    run("there-1", parallel={"pp": 2}),
    run("there-2", flags=["oom"], measured={}),
    run("there-3", flags=["layout_unknown"]),
    run("there-4", hardware={"device": "abacus", "count": 8}),
]


def write(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("runs") / "runs.jsonl", RUNS)


def document(capsys, *words: str) -> dict:
    assert main(["validate", *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_scores_are_by_source(capsys, runs):
    found = document(capsys, "--runs", runs)
    assert (found["rows"], found["told"]) == (
        7, {"scored": 5, "flagged": 1, "apart": 0, "not_expressed": 1},
    )  # fmt: skip
    assert {name: s["rows"] for name, s in found["sources"].items()} == {"here": 3, "there": 2}
    for score in (*found["sources"].values(), found["overall"]):
        assert set(score["step_time"]) == set(score["peak_memory"]) == ERRORS
        assert score.keys() >= {
            "spearman", "pair_order", "regret", "fit_agreement", "false_fits", "interval_coverage",
        }  # fmt: skip
    assert found["sources"]["here"]["fit_agreement"] is None
    assert found["sources"]["there"]["false_fits"] == 0.5
    assert found["flagged"]["layout_unknown"]["ids"] == ["there-3"]
    assert found["not_expressed"] == [
        {"id": "there-4", "source": "there", "reason": "no hardware profile for abacus"}
    ]


def test_predictions_that_are_measured_have_no_error(capsys, runs, tmp_path):
    """What is written for each run, taken as its measurement, scores perfectly."""
    lines = tmp_path / "rows.jsonl"
    assert main(["validate", "--runs", runs, "-o", str(lines), "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["id"] for row in rows] == [row["id"] for row in RUNS]
    measured = [
        {
            **given,
            "measured": {
                "step_time_s": row["predicted_step_time_s"],
                "peak_mem_gib": max(row["predicted_peak_bytes"]) / GIB,
            },
        }
        for given, row in zip(RUNS[:4], rows, strict=False)
    ]
    found = document(capsys, "--runs", write(tmp_path / "again.jsonl", measured))
    assert found["overall"]["step_time"]["max_abs_error"] == 0
    assert found["overall"]["peak_memory"]["max_abs_error"] < 1e-9
    assert (found["sources"]["here"]["pair_order"], found["sources"]["here"]["regret"]) == (1, 0)


def test_the_screen_tells_every_run(capsys, runs, tmp_path):
    page = tmp_path / "page.html"
    assert main(["validate", "--runs", runs, "--report", str(page)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("7 runs: 5 count, 1 are flagged, 0 are scored apart, 1 are not expressed")
    for word in ("here", "there", "all", "layout_unknown", "no hardware profile for abacus"):
        assert word in out
    assert err == f"note: wrote {page}\n"
    text = page.read_text()
    assert text.count("<circle") == 5
    assert "here-1: measured 100 ms, predicted" in text


def test_several_files_are_judged_together(capsys, runs, tmp_path):
    other = write(tmp_path / "other.jsonl", [run("elsewhere-1")])
    found = document(capsys, "--runs", runs, other)
    assert found == {**document(capsys, "--runs", runs, "--runs", other)}
    assert list(found["sources"]) == ["elsewhere", "here", "there"]
    assert found["overall"]["sources"] == 3


def test_several_processes_predict_what_one_does(capsys, runs, monkeypatch):
    alone = document(capsys, "--runs", runs)
    monkeypatch.setattr(judging, "ALONE", 0)
    assert document(capsys, "--runs", runs) == alone


def test_bad_files_are_told_at_once(capsys, runs, tmp_path):
    bad = write(tmp_path / "bad.jsonl", [{**run("a-1"), "seq_len": "long"}, run("a-2", tq=1)])
    assert main(["validate", "--runs", str(tmp_path / "none"), bad, runs, runs]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    for word in (
        "none: found no such file",
        "bad.jsonl:1",
        "seq_len",
        "bad.jsonl:2",
        "tq",
        "twice",
    ):
        assert word in err


def test_nothing_to_compare(capsys, tmp_path):
    assert main(["validate", "--steps", "0", str(tmp_path / "plan.json")]) == 2
    err = capsys.readouterr().err
    assert "--steps" in err
    assert "a plan file" in err
    assert main(["validate"]) == 2
    assert "recorded runs after --runs" in capsys.readouterr().err


def test_the_help_has_the_format(capsys):
    assert main(["validate", "--help"]) == 0
    assert "measured.step_time_s" in capsys.readouterr().out


def test_plans_are_run_and_compared(capsys, tmp_path):
    paths = []
    for pins in ("dp=2", "tp=2"):
        paths.append(str(tmp_path / f"{pins}.json"))
        words = ["tiny-llama", "cpu-host:2", "--gbs", "2", "--seq-len", "16", "--pin", pins]
        assert main(["simulate", *words, "-o", paths[-1], "-q"]) == 0
    page, lines = tmp_path / "page.html", tmp_path / "rows.jsonl"
    words = ["validate", *paths, "--steps", "2", "--report", str(page), "-o", str(lines), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["file"] for row in found["plans"]] == paths
    assert found["step_time"]["rows"] == 2
    for row in found["plans"]:
        error = row["predicted_step_time_s"] / row["measured_step_time_s"] - 1
        assert row["error"] == pytest.approx(error)
        assert row["parts"].keys() >= {"F", "B", "STEP"}
    assert "busy time" in page.read_text()
    assert len(lines.read_text().splitlines()) == 2
