"""Laws: a precision changes what its dtypes say, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.cost import Pricer
from autoplan.errors import InputError
from autoplan.files.machine_spec import load_hardware
from autoplan.ir.workload import PRECISIONS
from autoplan.lower import lower
from autoplan.workflow.question import Options, Question, resolve
from tests.cost.machines import STACK
from tests.plans import TINY_LLAMA, Choices, make_graph, make_plan

HARDWARE = load_hardware("h100-80g:2")


def seconds(precision: str) -> dict[tuple[str, bool], float]:
    """(operator, whether it touches the vocabulary) -> seconds of its instructions."""
    graph = make_graph(TINY_LLAMA)
    plan = make_plan(graph, TINY_LLAMA, Choices())
    plan = replace(plan, workload=replace(plan.workload, precision=PRECISIONS[precision]))
    program, table = lower(graph, plan), {}
    for segment in program.stages[0].segments.values():
        prices = Pricer(HARDWARE, STACK).instruction_seconds(segment, program.stages[0].mesh, {})
        for instr, price in zip(segment.code, prices, strict=True):
            names = [segment.registers[r].name for r in (*instr.ins, *instr.outs)]
            key = instr.op, any("logits" in n or "head" in n for n in names)
            table[key] = table.get(key, 0.0) + float(price)
    return table


@pytest.mark.parametrize("precision", ["fp8_tensor", "fp8_tile", "mxfp8"])
def test_fp8_speeds_up_hidden_products_alone(precision):
    wide, narrow = seconds("bf16_mixed"), seconds(precision)
    assert wide.keys() == narrow.keys()
    states_differ = precision == "fp8_tile"
    for key in wide:
        op, vocabulary = key
        if op.startswith("linear") and not vocabulary:
            assert narrow[key] < wide[key]
        elif not (op == "adamw" and states_differ):
            assert narrow[key] == pytest.approx(wide[key])


def test_a_device_without_the_dtype_is_refused():
    options = Options(precision="fp8_tensor")
    resolve(Question("tiny-llama", "h100-80g:8", options=options))
    with pytest.raises(InputError, match="products in .*bf16.*a100-80g has"):
        resolve(Question("tiny-llama", "a100-80g:8", options=options))
