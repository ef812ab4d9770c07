"""`autoplan profile` on files: a profile that other commands take, or every problem at once."""

from __future__ import annotations

import json

import pytest

from autoplan.cli import main
from tests.files.cluster_texts import TWO_SOCKETS, log, topology


@pytest.fixture
def files(tmp_path):
    topo, run = tmp_path / "topo.txt", tmp_path / "all_reduce.log"
    topo.write_text(topology(TWO_SOCKETS))
    run.write_text(log("all_reduce", 8, lambda n: 2e-4 + 2 * 7 / 8 * n / 9e9))
    return ["--topology", str(topo), "--nccl-log", str(run)]


def test_a_cluster_described_by_files(tmp_path, capsys, files):
    path = tmp_path / "mine.json"
    assert main(["profile", *files, "--extends", "rtx4090", "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "communication over level socket" in out
    assert f"note: wrote {path}\n" in err
    document = json.loads(path.read_text())
    assert document["name"] == "mine"
    assert main(["show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["levels"] == document["levels"]
    words = ["simulate", "tiny-llama", f"{path}:8", "--pin", "tp=2", "-q"]
    assert main(words) == 0


def test_json_has_the_profile_and_what_it_rests_on(capsys, files):
    assert main(["profile", *files, "--extends", "rtx4090", "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert set(document) == {"hardware", "links", "notes"}
    # The log is one line; the level that it is fitted to has a protocol for short messages as well.
    assert document["links"]["socket"]["error_large"] < 0.05
    assert err == ""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--ranks", "many"], "--ranks: found `many`"),
        (["--ranks", "0"], "--ranks: found `0`"),
        (["--ranks", "65"], "--ranks: found 65, allowed: 1 to 64"),
        (["--extends", "cpu-hots"], "did you mean `cpu-host`?"),
        (["--nccl-log", "nowhere.log"], "nowhere.log: found no such file"),
        (["--nccl-log", "nowhere.log"], "--extends: found null"),
        (["--topology", "nowhere.txt"], "nowhere.txt: found no such file"),
        (["--topology", "nowhere.txt", "--ranks", "2"], "nothing with --topology or --nccl-log"),
    ],
)
def test_bad_input(capsys, words, found):
    assert main(["profile", *words, "--quiet"]) == 2
    assert found in capsys.readouterr().err
