"""Published runs that no constant was fitted to: each is told, and the errors stay where they were.

`tests/data/published_elsewhere.jsonl` holds facts and figures of public pages, with their sources.
A row is never mended to fit: what is far off stays in, and bounds are those measured, with air.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import median

import pytest

from autoplan.files.machine_spec import load_hardware
from autoplan.files.runs import read_runs
from autoplan.validate.devices import profile_named
from autoplan.validate.evaluate import Prediction, predict
from autoplan.validate.express import express, recorded_stack

RUNS = Path(__file__).parents[1] / "data" / "published_elsewhere.jsonl"
REASONS = (
    "the micro-batch is not published", "the batch is not published",
    "the layout is not published", "precision nvfp4",
)  # fmt: skip
"""What nobody can guess, and a dtype without a bundle."""
BOUNDS = {
    "bloom": 0.20, "internevo": 0.12, "mbridge": 0.13, "dgxc": 0.15, "mpt": 0.13, "zero": 0.45,
}  # fmt: skip
"""Family of runs -> bound of the median error of its step times."""


@cache
def predictions() -> dict[str, Prediction]:
    return {record.id: predict(record) for record in read_runs(RUNS)}


def record_of(name: str):
    return next(record for record in read_runs(RUNS) if record.id == name)


def errors(prefix: str) -> list[float]:
    found = (p for name, p in predictions().items() if name.startswith(prefix))
    return [abs(p.step_time / p.measured - 1) for p in found if p.step_time and p.measured]


def test_every_run_is_predicted_or_refused_for_what_its_source_leaves_out():
    refused = [p.refusal for p in predictions().values() if p.refusal]
    assert [text for text in refused if not any(reason in text for reason in REASONS)] == []
    assert len(refused) <= 10


@pytest.mark.parametrize("family", BOUNDS)
def test_a_family_of_runs_stays_under_its_bound(family):
    assert median(errors(family)) < BOUNDS[family]


def test_the_median_error_stays_under_its_bound():
    assert median(errors("")) < 0.15


def test_runs_out_of_memory_name_no_time():
    ended = [p for name, p in predictions().items() if "-oom-" in name]
    assert ended
    assert all(p.measured is None and p.refusal == "" for p in ended)


def test_racks_that_a_job_does_not_fill_are_taken_alike():
    hardware = express(record_of("mbridge-26.02-405b-gb200")).hardware
    assert [level.size for level in hardware.levels] == [4, 16, 4]
    assert load_hardware("gb200").levels[1].size == 18


def test_embedding_and_head_count_as_layers_where_layers_alone_do_not_fill_the_stages():
    case = express(record_of("mbridge-26.02-405b-h100"))
    assert case.record.shape.layers == 126
    assert "a layer less in the first and the last stage" in case.assumed


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("mbridge-26.02-70b-gb200", "megatron-fsdp"),
        ("mbridge-26.02-70b-h100", "megatron"),
        ("dgxc-maxtext-70b-bf16-64", "maxtext"),
        ("bloom-0225-0", "megatron-deepspeed"),
        ("mpt-h100-7b-2048-8-bf16", "llm-foundry-amp"),
        ("internevo-8-tp1-z-1", "generic"),
    ],
)
def test_software_is_known_by_its_own_name_before_that_of_a_maker(name, stack):
    assert recorded_stack(record_of(name)) == stack


def test_a_slice_is_named_after_its_size():
    assert profile_named("v6e-256") == profile_named("TPU v6e")
