"""Scripts are followed as a shell would, where that can be told without running them."""

from __future__ import annotations

import random
import shutil
import subprocess
from contextlib import suppress

import pytest

from autoplan.errors import InputError
from autoplan.files.launch_config import read_launch
from autoplan.files.launch_shell import read_script
from tests.files.launches import MEGATRON_SCRIPT

SCRIPTS = [
    "A=3\nB=$A\nrun --b $B --c ${A}x",
    "A=${X:-7}; run --a $A --b ${Y:-$A} --c ${Z:=${A}}",
    "N=2 M=8\nrun --w $(($N*$M)) --v $((N + M / 3)) --u $((M % 3 - -N))",
    "ARGS=(\n  --a 1  # one\n  # --b 2\n  --c '3'\n)\nARGS+=(--d 4)\nrun ${ARGS[@]} \"${ARGS[@]}\"",
    'OPTS=" --a 1 \\\n  --b 2"\nOPTS+=" --c"\nrun $OPTS',
    "A=x\nif [ $A = x ]; then B=1; else B=2; fi\nrun --b $B",
    "A=4\nif [ $A -gt 8 ]\nthen\n B=1\nelif [ $A -ge 4 ] && [ -n $A ]; then\n B=2\nelse\n B=3\nfi\n"
    "run --b $B",
    "A=\nif [[ -z $A || $A == y ]]; then B='yes'; fi\n[[ ! -z $A ]] && B=no\nrun --b $B",
    "if [ 1 -eq 2 ]; then\n if [ 1 -eq 1 ]; then A=1; fi\nelse A=2; fi\nrun --a $A",
    "[ 3 -lt 4 ] && A=5 || A=6\n[ 3 -gt 4 ] || B=7\nrun --a $A --b $B",
    "(A=1; run --a $A)\n{ run --c d; }",
    "run --a 1 \\\n  --b 2 && run --c",
    "run --a \"b\" --c='d' --e=$HERE",
]


@pytest.mark.parametrize("text", SCRIPTS)
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash to compare with")
def test_commands_are_those_that_bash_runs(text):
    """`run` prints its words; the variables that nobody set are empty in bash and kept by us."""
    done = subprocess.run(
        ["bash", "-c", 'run() { printf "%s\\n" "$*"; }\n' + text],
        capture_output=True, text=True, check=False, timeout=20, env={"HERE": "$HERE"},
    )  # fmt: skip
    script = read_script(text)
    ours = [" ".join(words[1:]) for words in script.commands if words[0] == "run"]
    assert ours == done.stdout.splitlines()
    assert not script.unread


def test_what_cannot_be_told_is_listed():
    script = read_script(
        'if [ -f "$HOME/x" ]; then ARGS="--a 1"; fi\n'
        "for i in 1 2; do OPTS=$i; done\n"
        "more() {\n  X=1\n}\n"
        'echo "--usage"\n'
        "run --n $SLURM_NNODES --out $(date +%s)\n"
    )
    assert script.unread == ['line 1: ARGS="--a 1"', "line 2: OPTS=$i"]
    assert script.commands == [["run", "--n", "$SLURM_NNODES", "--out", "$(date", "+%s)"]]


def test_a_variable_that_is_set_from_itself_is_not_followed_for_ever():
    script = read_script("N=$(($N+1))\nM=${M:-$N}\nA=$A:b\nrun --n $N --a $A\n")
    assert script.commands[0][0] == "run"
    assert "$N" in " ".join(script.commands[0])


def test_files_that_a_script_writes_are_kept():
    script = read_script(
        'STAGE=2\nDS=ds.json\ncat <<EOT > $DS\n{"stage": $STAGE}\nEOT\nrun --x 1\n'
    )
    assert script.files == {"ds.json": '{"stage": 2}'}
    assert script.commands == [["run", "--x", "1"]]


def test_a_damaged_script_is_read_or_refused(tmp_path):
    """Characters and lines lost, doubled and swapped: never anything but InputError."""
    chance = random.Random(4)
    path = tmp_path / "run.sh"
    for _ in range(150):
        text = list(MEGATRON_SCRIPT)
        for _ in range(chance.randint(1, 12)):
            at = chance.randrange(len(text))
            text[at : at + chance.randint(0, 8)] = chance.choice(
                ["", "$", '"', "(", "\n", "8", "if "]
            )
        path.write_text("".join(text))
        with suppress(InputError):
            read_launch(path)
