"""Precision and optimizer as typed: a name and what differs; all that is wrong at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import InputError
from autoplan.files.workload import (
    dump_workload,
    optimizer_document,
    parse_precision,
    parse_workload,
    precision_document,
)
from autoplan.ir.optimizer import OPTIMIZERS
from autoplan.ir.workload import DTYPE_ROLES, PRECISIONS, LossScale
from tests.files.examples import workload


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_bundle_is_its_name(name):
    assert parse_precision(precision_document(name, []), "--precision") == PRECISIONS[name]
    assert str(PRECISIONS[name]) == name


@pytest.mark.parametrize("role", DTYPE_ROLES)
def test_every_dtype_can_be_overridden(role):
    text = f"bf16_mixed,{role}=fp64"
    found = parse_precision(precision_document(text, []), "--precision")
    assert found == replace(PRECISIONS["bf16_mixed"], **{role: "fp64"})
    assert str(found) == text


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_has_its_defaults(name):
    document = optimizer_document(f"{name},lr=0.5,clip=2", [])
    assert document == {"name": name, "hyper": {**OPTIMIZERS[name].hyper, "lr": 0.5}, "clip": 2.0}
    whole = dump_workload(workload())
    parsed = parse_workload({**whole, "optimizer": document}, "w.json")
    assert parsed.optimizer.settings == document["hyper"]
    assert parse_workload(dump_workload(parsed), "w.json") == parsed


@pytest.mark.parametrize("part", ["lr", "lr=", "=1", "lr=1,lr=2", "name=sgd"])
def test_a_malformed_part_is_named(part):
    found = []
    optimizer_document(f"adamw,{part}", found)
    assert len(found) == 1
    assert found[0].source == "--optimizer"


def test_a_foreign_hyper_parameter_is_refused():
    document = {**dump_workload(workload()), "optimizer": {"name": "lion", "hyper": {"eps": 0.1}}}
    with pytest.raises(InputError) as caught:
        parse_workload({**document, "precision": "bf16_mixd"}, "w.json")
    fields = {problem.field for problem in caught.value.problems}
    assert fields == {"$.optimizer.hyper.eps", "$.precision.name"}


def test_the_loss_scale_stands_where_it_matters():
    plain, scaled = workload(), replace(workload(), precision=PRECISIONS["fp16_mixed"])
    assert "loss_scale" not in dump_workload(plain)
    for scale in (LossScale(), LossScale(2.0**10, 5)):
        given = replace(scaled, loss_scale=scale)
        assert parse_workload(dump_workload(given), "w.json") == given
