"""`calibrate`, end to end: runs of a machine and a stack become profiles that explain them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.cli import main
from autoplan.cost import Pricer
from autoplan.simulate import simulate_priced
from autoplan.units import GIB
from autoplan.validate.express import express
from autoplan.validate.samples import lowered
from tests.validate.records import record

TRUTH = {"pointwise_factor": 1.5, "saved_factor": 1.6, "framework_bytes": 2.2}
"""Factors on the constants of the stack that was really used."""
LAYOUTS = (
    {"tp": 1, "pp": 1, "dp": 8}, {"tp": 2, "pp": 1, "dp": 4}, {"tp": 2, "pp": 2, "dp": 2},
)  # fmt: skip
MODELS = {"small": {"layers": 4, "ffn": 2816}, "wide": {"layers": 8, "ffn": 5632}}


def measured(given) -> tuple[float, float]:
    """(seconds, bytes) of a run on the machine with the true constants."""
    case = express(given)
    factors = {n: v * TRUTH.get(n, 1.0) for n, v in case.stack.constants.items()}
    pricer = Pricer(case.hardware, replace(case.stack, constants=factors))
    timeline = simulate_priced(lowered(given).programs[-1][0], pricer)
    return timeline.step_time, max(sum(lines.values()) for lines in timeline.peak_memory)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> str:
    """Runs whose step is short enough to be simulated whole; one that ended out of memory."""
    rows = []
    for name, sizes in MODELS.items():
        for layout in LAYOUTS:
            for micro in (1, 4):
                batch = 3 * micro * layout["dp"] * layout["pp"]
                shape = replace(record().shape, **sizes)
                plain = record(
                    name=name, shape=shape, parallel=layout, micro_batch=micro, stack="megatron",
                    global_batch=batch,
                )  # fmt: skip
                seconds, peak = measured(plain)
                rows.append(row(f"here-{len(rows)}", plain, sizes, step_time_s=seconds,
                                peak_mem_gib=peak / GIB))  # fmt: skip
    huge = record(shape=replace(record().shape, layers=8), micro_batch=1024, global_batch=24576,
                  parallel=LAYOUTS[0])  # fmt: skip
    rows.append(row("here-oom", huge, {"layers": 8, "ffn": 2816}) | {"flags": ["oom"]})
    rows.append(
        row("here-apart", huge, {"layers": 8, "ffn": 2816})
        | {"flags": ["layout_unknown"], "measured": {"step_time_s": 1.0}}
    )
    path = tmp_path_factory.mktemp("runs") / "runs.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return str(path)


def row(name: str, given, sizes, **numbers) -> dict:
    model = {
        "name": given.name, "n_layers": sizes["layers"], "hidden": 1024, "heads": 16,
        "ffn": sizes["ffn"], "gated_ffn": True, "vocab": 32000,
    }  # fmt: skip
    return {
        "id": name, "model": model, "seq_len": 1024, "global_batch": given.global_batch,
        "micro_batch": given.micro_batch, "parallel": dict(given.parallel), "precision": "bf16",
        "hardware": {"device": "A100-80GB", "count": 8, "per_node": 8}, "recompute": "none",
        "schedule": "1f1b", "measured": numbers,
    }  # fmt: skip


def test_fitted_profiles_explain_the_runs(runs, tmp_path, capsys):
    output = tmp_path / "mine.json"
    words = ["--hardware", "a100-80g", "--stack", "megatron", "-o", str(output), "--json"]
    assert main(["calibrate", runs, *words]) == 0
    document = json.loads(capsys.readouterr().out)
    for key in ("step_time", "peak_memory"):
        part = document[key]
        assert part["runs"] == len(MODELS) * len(LAYOUTS) * 2
        assert part["folds"] == "models"
        assert part["after"]["median_abs_error"] < part["before"]["median_abs_error"] / 2
    assert document["peak_memory"]["fits"]["after"] == {"agreement": 1.0, "false_fits": 0.0}
    assert [one["id"] for one in document["refused"]] == ["here-apart"]
    numbers = {one["number"]: one for one in document["constants"]}
    assert numbers["saved_factor"]["identified"]
    assert numbers["saved_factor"]["before"] == 1 < 1.2 < numbers["saved_factor"]["after"]
    assert "scores_kept" not in numbers  # attention is fused
    written = json.loads(output.read_text())
    assert written["extends"] == "megatron"
    assert written["constants"]["saved_factor"]["evidence"] == "fitted"

    fitted = [
        json.loads(line) | {"stack": str(output)} for line in Path(runs).read_text().splitlines()
    ]
    again = tmp_path / "again.jsonl"
    again.write_text("".join(json.dumps(one) + "\n" for one in fitted))
    errors = []
    for path in (runs, again):
        assert main(["validate", "--runs", str(path), "--json"]) == 0
        source = json.loads(capsys.readouterr().out)["sources"]["here"]
        errors.append([source[key]["median_abs_error"] for key in ("step_time", "peak_memory")])
    assert all(after < before for before, after in zip(*errors, strict=True))


def test_the_screen_says_what_the_runs_cannot_tell(runs, capsys):
    assert main(["calibrate", runs, "--hardware", "a100-80g", "--stack", "megatron"]) == 0
    screen = capsys.readouterr().out
    for words in ("step time, 12 runs", "peak memory, 12 runs", "left-out models", "left alone",
                  "fits or out of memory", "set apart: layout_unknown"):  # fmt: skip
        assert words in screen


def test_chips_that_are_scored_apart_are_fitted_to(runs, tmp_path, capsys):
    """A remark that only takes the weight of a run does not keep it from its own profile."""
    path = tmp_path / "chips.jsonl"
    rows = [json.loads(line) for line in Path(runs).read_text().splitlines()]
    for row in rows:
        row["hardware"]["device"] = "TPU v5e"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--hardware", "tpu-v5e", "--stack", "generic", "--json"]
    assert main(["calibrate", str(path), *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {one["reason"] for one in document["refused"]} == {"set apart: layout_unknown"}
    assert document["step_time"]["runs"] == len(MODELS) * len(LAYOUTS) * 2
    assert document["hardware"]["extends"] == "tpu-v5e"
