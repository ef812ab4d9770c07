"""`run --save DIR --resume DIR`: what is said, what is refused, and what torchrun is told."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from autoplan.cli import main
from autoplan.files.checkpoint import read_checkpoint

RUN = "run tiny-gpt2 cpu-host:2 --gbs 4 --seq-len 16 --transport lockstep --no-verify"


def run(words: str) -> int:
    return main(shlex.split(f"{RUN} {words}"))


def test_a_run_goes_on_where_it_stopped(tmp_path, capsys):
    """Steps count from the checkpoint on, and the losses are those of a run without a stop."""
    folder = tmp_path / "deep" / "saved"
    assert run(f"--pin dp=2,zero=3 --steps 2 --save {folder} --json") == 0
    before = json.loads(capsys.readouterr().out)
    assert run(f"--pin tp=2 --resume {folder} --save {folder} --json") == 0
    out, err = capsys.readouterr()
    after = json.loads(out)
    assert f"resumes at step 2 from {folder}" in err
    assert (before["first_step"], after["first_step"]) == (0, 2)
    assert read_checkpoint(folder).step == 3
    assert run("--pin pp=2 --steps 3 --json") == 0
    whole = json.loads(capsys.readouterr().out)["loss"]
    assert before["loss"] + after["loss"] == pytest.approx(whole, rel=1e-12, abs=0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "saved"
    assert run(f"--save {folder} --quiet") == 0
    return folder


def test_what_is_changed_is_said(saved, capsys):
    assert run(f"--resume {saved} --seed 5 --dropout 0") == 0
    err = " ".join(capsys.readouterr().err.split())
    assert "resumes with seed 5 (saved with 0)" in err
    assert "resumes with dropout 0.0 (saved with the model's)" in err


def test_every_wrong_folder_is_named_before_anything_runs(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("keep me")
    assert run(f"--save {tmp_path} --resume {tmp_path / 'nowhere'} --data /nothing") == 2
    err = capsys.readouterr().err
    assert "which holds something else" in err
    assert "found no such folder, allowed: a folder that --save has written" in err
    assert "--data" in err
    assert (tmp_path / "notes.txt").read_text() == "keep me"


@pytest.mark.parametrize("folder", ["/dev/null", "/proc/none/such", "x" * 5000])
def test_a_folder_that_cannot_be_written_is_found_first(folder, capsys):
    assert run(f"--save {folder}") == 2
    assert "--save" in capsys.readouterr().err


def test_torchrun_is_told_and_another_optimizer_refused_before(saved, tmp_path, monkeypatch):
    told: list[list[str]] = []
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2, raising=False)

    def start(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        told.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", start)
    words = RUN.replace("--transport lockstep", "--nproc-per-node 2").split()
    folders = ["--resume", str(saved), "--save", str(tmp_path / "next")]
    main([*words, *folders])
    assert [told[0][told[0].index(flag) + 1] for flag in ("--resume", "--save")] == folders[1::2]
    assert main([*words, *folders, "--optimizer", "sgd"]) == 2
    assert len(told) == 1
