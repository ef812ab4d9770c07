"""Every exit code, reached by the command that a person types, and for the true cause."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from torch import Tensor

from autoplan.cli import main
from autoplan.runtime.kernels import KERNELS, Kernel, StepContext
from autoplan.runtime.kernels.place import Site
from tests.runtime.test_no_process_left import children

BATCH = "--gbs 4 --seq-len 32"
VICTIM, COORDINATE = 2, (0, 1)
"""Rank of a plan with dp=2 and tp=2, and its place in the mesh, whose axes are tp and dp."""


def run(command: str) -> int:
    return main(shlex.split(command))


def patched(
    monkeypatch: pytest.MonkeyPatch, op: str, effect: Callable[[StepContext, Tensor], Tensor]
) -> None:
    """Let one rank apply an effect to the first result of an operator; forks inherit it."""
    build = KERNELS[op]

    def builder(site: Site) -> Kernel:
        kernel = build(site)

        def wrong(context: StepContext, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
            first, *others = kernel(context, operands)
            return (effect(context, first), *others)

        return wrong if site.place.coordinate == COORDINATE else kernel

    monkeypatch.setitem(KERNELS, op, builder)


def fail() -> None:
    raise ZeroDivisionError("an accident")


@pytest.mark.parametrize(
    ("accident", "what"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "died (SIGKILL)"),
        (lambda: os.kill(os.getpid(), signal.SIGSTOP), "is stopped"),
        (fail, "raised ZeroDivisionError: an accident"),
    ],
    ids=["SIGKILL", "SIGSTOP", "raise"],
)
def test_a_lost_rank_ends_with_6(monkeypatch, capsys, accident, what):
    def effect(context: StepContext, result: Tensor) -> Tensor:
        if context.step == 1:
            accident()
        return result

    patched(monkeypatch, "rms_norm_dx", effect)
    before = children()
    assert run(f"run tiny-llama cpu-host:4 --pin dp=2,tp=2 {BATCH} --steps 2 --json") == 6
    out, err = capsys.readouterr()
    assert f"rank {VICTIM} {what}" in err
    assert "it stood at step 1: B head/B.first i5 m0: rms_norm_dx" in err
    assert json.loads(out)["error"]["kind"] == "LaunchError"
    assert children() == before


def test_wrong_numbers_end_with_5(monkeypatch, capsys):
    patched(monkeypatch, "rms_norm_dx", lambda _, result: result.mul_(1.0 + 1e-6))
    words = f"run tiny-llama cpu-host:4 --pin dp=2,tp=2 {BATCH} --transport lockstep --json"
    assert run(words) == 5
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["verified"] is False
    assert report["max_gradient_error"] > report["limit"]
    assert "gradient" in err
    assert "layers." in err


# --- 4: a Program that breaks an invariant ------------------------------------------------------


def without_an_instruction(program: dict) -> None:
    code = program["stages"][0]["segments"]["layer/F"]["code"]
    del code[1]


def with_two_swapped(program: dict) -> None:
    code = program["stages"][0]["segments"]["layer/F"]["code"]
    code[0], code[1] = code[1], code[0]


def without_a_receive(program: dict) -> None:
    actions = program["stages"][1]["actions"]
    actions.remove(next(action for action in actions if action.startswith("RECV")))


def with_sends_swapped(program: dict) -> None:
    """The first stage sends micro-batch 1 before 0, against what its neighbour awaits."""
    stage = program["stages"][0]
    text = json.dumps(stage["actions"])
    stage["actions"] = json.loads(text.replace("i3 m0 @1", "i3 m? @1").replace(
        "i3 m1 @1", "i3 m0 @1").replace("i3 m? @1", "i3 m1 @1"))  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "program.json"
    assert run(f"lower tiny-llama cpu-host:2 --pin pp=2 {BATCH} -o {path} -q") == 0
    return path


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (without_an_instruction, "layer/F, instruction"),
        (with_two_swapped, "layer/F, instruction"),
        (without_a_receive, "stage"),
        (with_sends_swapped, "stage"),
    ],
)
def test_a_damaged_program_ends_with_4(program, tmp_path, capsys, damage, named):
    document = json.loads(program.read_text())
    damage(document)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(document))
    assert run(f"simulate {program} cpu-host:2 -q") == 0
    assert run(f"simulate {path} cpu-host:2") == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err


# --- 3: nothing fits ----------------------------------------------------------------------------


def command(devices: int, memory: str, headroom: str, pins: dict[str, str]) -> str:
    words = f"search gpt2 cpu-host:{devices} --gbs 4 --seq-len 64 --memory-headroom {headroom} "
    words += "".join(f"--pin {key}={value} " for key, value in pins.items())
    return f"{words} --set device.memory={memory} --json"


def changed(hint: str, devices: int, headroom: str, pins: dict[str, str]) -> tuple:
    """What a person asks next who follows a hint."""
    words = hint.split()
    match words[1:]:
        case ["on", count, "devices", *rest]:
            return int(count), headroom, pins if not rest else {}
        case ["without", "the", "pin", "of", key]:
            return devices, headroom, {k: v for k, v in pins.items() if k != key}
        case ["with", "--memory-headroom", value]:
            return devices, value, pins
    raise AssertionError(hint)


@pytest.mark.parametrize(
    ("memory", "headroom", "pins", "expected"),
    [
        ("2400MiB", "0", {"zero": "0", "dp": "2"}, "fits without the pin of zero"),
        ("2400MiB", "20%", {}, "fits with --memory-headroom 0"),
        ("2000MiB", "0", {}, "fits on 4 devices"),
    ],
)
def test_where_nothing_fits_hints_are_true(capsys, memory, headroom, pins, expected):
    assert run(command(2, memory, headroom, pins)) == 3
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert "the least is" in err
    assert sum(error["refused"].values()) > 0
    assert expected in error["nearest"]
    for hint in error["nearest"]:
        devices, less, fewer = changed(hint, 2, headroom, pins)
        assert run(command(devices, memory, less, fewer)) == 0, hint
        capsys.readouterr()
