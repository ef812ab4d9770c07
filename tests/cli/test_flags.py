"""The command line's surface: its flags are frozen, and asking for help is instant."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import typer

from autoplan.cli import app

ASKING = (
    "--pin --stack --set --global-batch-size --global-batch --gbs --seq-len --seq-length "
    "--precision --optimizer --trainable --dropout --memory-headroom --seed --lengths "
    "--download"
)
COMMON = "--json --quiet -q --version"
FLAGS = {
    "search": f"{COMMON} {ASKING} --goal --top --output -o --report",
    "simulate": f"{COMMON} {ASKING} --trace --output -o --report",
    "explain": f"{COMMON} {ASKING} --why-not --measured --config --report",
    "compare": f"{COMMON} --report",
    "lower": f"{COMMON} {ASKING} --output -o",
    "run": f"{COMMON} {ASKING} --steps --data --verify --no-verify --save --resume --rehearse "
    "--transport --device --nnodes --nproc-per-node --node-rank --rdzv-endpoint --rdzv-id "
    "--master-addr",
    "show": f"{COMMON} --download",
    "profile": f"{COMMON} --ranks --topology --nccl-log --extends --output -o",
    "validate": f"{COMMON} --runs --steps --output -o --report",
    "calibrate": f"{COMMON} --hardware --stack --output -o",
}
"""A new knob belongs in a file; a new flag is a reviewed change of this table."""

HEAVY = ("torch", "numpy", "scipy", "networkx", "rich")
MOST_HELP_SECONDS = 0.5
"""Of the processor; about 0.1 s on an idle core."""


def commands():
    return typer.main.get_command(app).commands


def test_commands_are_frozen():
    assert list(commands()) == list(FLAGS)


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_frozen(name):
    options = [
        flag
        for parameter in commands()[name].params
        if parameter.param_type_name == "option"
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag != "--help"
    ]
    assert sorted(options) == sorted(FLAGS[name].split())


@pytest.mark.parametrize("name", FLAGS)
def test_every_parameter_is_explained(name):
    assert all(parameter.help for parameter in commands()[name].params)
    assert commands()[name].help


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]], ids=" ".join)
def test_help_is_instant(words):
    """Nothing heavy is imported, and the processor works for a fraction of a second."""
    code = (
        f"import sys; from autoplan.cli import main; code = main({words});"
        f"print([m for m in {HEAVY} if m in sys.modules], code)"
    )
    begin = children_seconds()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[] 0"
    assert done.stdout.startswith("Usage: autoplan")
    assert children_seconds() - begin < MOST_HELP_SECONDS


def test_planning_never_loads_torch():
    code = (
        "import sys; from autoplan.cli import main;"
        "code = main('simulate tiny-llama cpu-host:2 --pin tp=2 -q'.split());"
        "print('torch' in sys.modules, code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False 0\n"
