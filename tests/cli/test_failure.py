"""Every way to fail: its exit code, its message on stderr, its JSON on stdout."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import autoplan.workflow
from autoplan.cli import main
from autoplan.errors import (
    CheckError,
    InfeasibleError,
    InputError,
    LaunchError,
    MismatchError,
    Problem,
)

ERRORS = [
    (InputError(Problem("plan.json", "$.a", "1", "2", "try 2")), 2),
    (InfeasibleError("needs 31 GiB of 24 GiB", {"memory": 3}, ["recompute=full"]), 3),
    (CheckError("register 3 is read before it is defined"), 4),
    (MismatchError("gradient of wq"), 5),
    (LaunchError("rank 2 died"), 6),
]


def fail_with(monkeypatch, error):
    def verb(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(autoplan.workflow, "plan_search", verb)


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=[type(e).__name__ for e, _ in ERRORS])
def test_errors_keep_their_codes(monkeypatch, capsys, error, code):
    fail_with(monkeypatch, error)
    assert main(["search", "tiny-llama", "cpu-host"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: {error}\n"


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=[type(e).__name__ for e, _ in ERRORS])
def test_json_says_what_is_wrong(monkeypatch, capsys, error, code):
    fail_with(monkeypatch, error)
    assert main(["search", "tiny-llama", "cpu-host", "--json"]) == code
    document = json.loads(capsys.readouterr().out)["error"]
    assert (document["kind"], document["exit_code"]) == (type(error).__name__, code)
    if code == 2:
        assert document["problems"][0]["hint"] == "try 2"
    if code == 3:
        assert document["refused"] == {"memory": 3}


def test_a_bug_is_no_traceback(monkeypatch, capsys):
    fail_with(monkeypatch, ZeroDivisionError("division by zero"))
    assert main(["search", "tiny-llama", "cpu-host"]) == 70
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    log = Path(next(word for word in err.split() if word.endswith(".log")))
    assert "ZeroDivisionError: division by zero" in log.read_text()
    log.unlink()


def test_an_interrupt_is_130(monkeypatch, capsys):
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main(["search", "tiny-llama", "cpu-host"]) == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "words",
    ["nope", "search", "search tiny-llama", "lower a b c", "show --jsn", "run p.json --steps"],
)
def test_usage_errors_are_ours(capsys, words):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: command line: found ")
    assert "--help` lists" in err


def test_all_problems_at_once(capsys):
    words = (
        "run nope rtx --steps 0 --precision fp6 --pin tq=3 --gbs x --set a --data /nope --nnodes q"
    )
    assert main([*words.split(), "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["error"]["problems"]
    sources = [problem["source"] for problem in problems]
    assert sorted(sources) == sorted(
        ["--steps", "--nnodes", "--precision", "--data", "model", "--set", "hardware", "--pin",
         "--global-batch-size"]
    )  # fmt: skip
    hints = {problem["source"]: problem["hint"] for problem in problems}
    assert hints["hardware"] == "did you mean `rtx4090`?"


VALID = [
    "simulate tiny-llama cpu-host:4 --pin tp=2,zero=1 --gbs 8 --seq-len 64 --precision fp32",
    "simulate tiny-gpt2 rtx4090:8 --pin dp=-1 --pin pp=2 --dropout 0.1 --memory-headroom 6%",
    "lower tiny-llama cpu-host:2 --optimizer sgd --trainable wq --set levels.rank.latency=5us",
    "show rtx4090:16x8 --json",
    "run tiny-llama cpu-host:2 --steps 2 --precision fp64 --transport lockstep --no-verify",
    "explain tiny-llama cpu-host:2 --pin tp=2 --why-not dp=2 --measured mfu=40%,memory=1GiB",
    "compare one.json other.json --json",
    "explain --config run.sh tiny-llama cpu-host:2 --measured step_time=1s --quiet",
    "validate --runs runs.jsonl --json -o rows.jsonl",
    "calibrate runs.jsonl --hardware cpu-host --stack megatron -o mine.json",
    "profile --topology topo.txt --nccl-log log.txt --extends a100-80g -o machine.json",
]
COMMAND_LINES = 400
SCRAPS = [
    "",
    "-",
    "--",
    "=",
    "tp",
    "tp=0",
    "-1",
    "1e99",
    "nan",
    "\x00",
    "a" * 300,
    "None",
    "[]",
    "\u00fc",
]


def mutated(rng: random.Random) -> list[str]:
    """A valid command line with a word dropped, doubled, swapped, cut or replaced."""
    words = rng.choice(VALID).split()
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(words))
        match rng.randrange(5):
            case 0 if len(words) > 1:
                del words[at]
            case 1:
                words.insert(at, words[at])
            case 2:
                other = rng.randrange(len(words))
                words[at], words[other] = words[other], words[at]
            case 3:
                words[at] = words[at][: rng.randrange(len(words[at]) + 1)]
            case _:
                words[at] = rng.choice(SCRAPS)
    return words


def test_mutated_command_lines_never_crash(monkeypatch, capsys, tmp_path):
    """Each ends with an answer or with exit 2, never with a bug."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autoplan.workflow.running._execute", lambda *_: (None, ()))
    rng = random.Random(0)
    for _ in range(COMMAND_LINES):
        words = mutated(rng)
        code = main(words)
        captured = capsys.readouterr()
        assert code in (0, 2), (words, captured.err)
        assert "Traceback" not in captured.err
        if "--json" in words and captured.out and "--help" not in words:
            json.loads(captured.out)
