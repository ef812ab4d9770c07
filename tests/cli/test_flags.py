"""The command line's surface: its flags are frozen, and asking for help is instant."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from autoplan.cli import app

ASKING = (
    "--pin --stack --set --global-batch-size --global-batch --gbs --seq-len --seq-length "
    "--precision --optimizer --trainable --dropout --memory-headroom --seed --download"
)
COMMON = "--json --quiet -q --version"
FLAGS = {
    "search": f"{COMMON} {ASKING} --top --output -o",
    "simulate": f"{COMMON} {ASKING} --trace --output -o",
    "lower": f"{COMMON} {ASKING} --output -o",
    "run": f"{COMMON} {ASKING} --steps --data --verify --no-verify --rehearse --transport --device "
    "--nnodes --nproc-per-node --node-rank --rdzv-endpoint --rdzv-id --master-addr",
    "show": f"{COMMON} --download",
}
"""A new knob belongs in a file; a new flag is a reviewed change of this table."""

HEAVY = ("torch", "numpy", "scipy", "networkx", "rich")


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


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from autoplan.cli import main; code = main(['run', '--help']);"
        f"print([m for m in {HEAVY} if m in sys.modules], code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[] 0"
    assert done.stdout.startswith("Usage: autoplan run")


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
