"""Law: arithmetic refuses exactly the degrees that cannot be built, and the values that it names
are those that can."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from math import prod
from random import Random

import pytest

from autoplan.errors import InputError
from autoplan.files.hf_config import load_model
from autoplan.frontends import build_graph, training_step
from autoplan.ir.machine import Stack, StackRule
from autoplan.ir.workload import PRECISIONS, Workload
from autoplan.presets import DEGREES, build_plan, padded_vocab, parse_pins, plan
from autoplan.presets.legal import Case, batch_problem, obeys
from tests.generators import ADAMW, machine

BASE = load_model("tiny-llama")
TP_SET = re.compile(r"allowed: tp in \{([\d, ]+)\}")


def random_config(rng: Random):
    groups = rng.choice((1, 2, 3, 4))
    return replace(
        BASE, heads=groups * rng.choice((1, 2, 3)), kv_heads=groups, head_dim=8,
        hidden=rng.choice((24, 32)), ffn=rng.choice((48, 64)), vocab=rng.choice((60, 64, 65)),
        layers=1,
    )  # fmt: skip


def build(config, pins: str, devices: int, seq_len: int):
    workload = Workload("train", 12, seq_len, PRECISIONS["fp32"], ADAMW)
    graph = training_step(build_graph(config, seq_len))
    return build_plan(graph, config, (machine(devices), Stack("toy")), workload, parse_pins([pins]))


def refusal(config, pins: str, devices: int, seq_len: int) -> str:
    """Why a plan is refused, or "" where it is built."""
    try:
        build(config, pins, devices, seq_len)
    except InputError as error:
        return str(error)
    return ""


def random_cases(count: int, seed: int):
    rng = Random(seed)
    for _ in range(count):
        degrees = {key: rng.choice((1, 1, 2, 3, 4)) for key in ("tp", "tp2", "cp", "dp")}
        devices = prod(degrees.values())
        if devices > 16:
            continue
        pins = ",".join(f"{key}={value}" for key, value in degrees.items())
        pins += f",sp={rng.choice(('on', 'off'))},vocab={rng.choice(('on', 'off'))}"
        yield random_config(rng), pins, devices, rng.choice((12, 16, 18, 24))


def test_arithmetic_refuses_what_cannot_be_built_and_nothing_else(monkeypatch):
    told = [(case, refusal(*case)) for case in random_cases(250, 0)]
    monkeypatch.setattr(plan, "degree_problems", lambda *args: [])
    for case, reason in told:
        assert bool(reason) == bool(refusal(*case)), f"{case}: {reason}"
    outcomes = Counter(bool(reason) for _, reason in told)
    assert min(outcomes.values()) > 50


def test_legal_values_are_those_that_build():
    """Heads alone: every value of tp, with widths that divide by all of them."""
    config = replace(BASE, heads=12, kv_heads=4, head_dim=8, hidden=24, ffn=840, vocab=840)
    (listed,) = TP_SET.findall(refusal(config, "tp=5,dp=1", 5, 840))
    legal = {int(value) for value in listed.split(", ")}
    built = {tp for tp in range(1, 13) if not refusal(config, f"tp={tp},dp=1", tp, 840)}
    assert legal == built == {1, 2, 3, 4}


def test_every_broken_rule_is_reported_at_once():
    config = replace(BASE, heads=6, kv_heads=6, head_dim=8, ffn=66, vocab=65)
    with pytest.raises(InputError) as caught:
        build(config, "tp=4,tp2=5,dp=3", 12, 18)
    fields = Counter(problem.field for problem in caught.value.problems)
    assert fields == {"degrees": 1, "tp": 3, "tp2": 1, "cp": 1}


def test_a_refused_batch_names_its_neighbours():
    problem = batch_problem(192, 128, 1)
    assert problem is not None
    assert "nearest 128 or 256" in problem.hint
    assert "96" in problem.hint
    assert batch_problem(768, 128, 2) is None
    small = batch_problem(2, 8, 1)
    assert small is not None
    assert small.hint.startswith("nearest 8;")


@pytest.mark.parametrize(
    ("vocab", "tp", "multiple", "padded"),
    [(32000, 2, 128, 32000), (32002, 2, 128, 32256), (50257, 2, 1, 50258), (50257, 2, 128, 50432),
     (128256, 8, 64, 128512)],
)  # fmt: skip
def test_padding_rolls_to_the_next_multiple(vocab, tp, multiple, padded):
    assert padded_vocab(vocab, tp, multiple) == padded


@pytest.mark.parametrize(
    ("rule", "value", "holds"),
    [
        (StackRule("tp", "divides", "kv_heads"), 2, True),
        (StackRule("tp", "divides", "kv_heads"), 4, False),
        (StackRule("cp", "divides or repeats", "kv_heads"), 4, True),
        (StackRule("pp", "at most", "micro_batches"), 13, False),
        (StackRule("pp", "at most", "micro_batches", 1, ("schedule", "=", "gpipe")), 13, True),
        (StackRule("cp", "divides", "seq_len", 16, ("cp", ">", "1")), 4, True),
        (StackRule("pp", "divides", "layers", unless="layers_per_stage"), 3, True),
    ],
)
def test_rules_of_stacks(rule, value, holds):
    workload = Workload("train", 12, 24, PRECISIONS["fp32"], ADAMW)
    values = {**dict.fromkeys(DEGREES, 1), "schedule": "1f1b", "layers_per_stage": (2, 1, 1)}
    assert obeys(rule, Case(BASE, workload, values), value) is holds
