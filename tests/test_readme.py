"""The front door is true: its commands parse, the cheap ones run, the places it names exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

from autoplan.cli import app, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = typer.main.get_command(app).commands


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def command_lines() -> list[list[str]]:
    """The words of every `autoplan` command in the README, after the program's name."""
    lines = [part for block in blocks("sh") for line in block.splitlines()
             for part in line.split(" && ")]  # fmt: skip
    words = [shlex.split(line) for line in lines]
    return [found[1:] for found in words if Path(found[0]).name == "autoplan"]


SET_UP_AND_SEARCH, SET_UP_AND_TEST = (block.strip() for block in blocks("sh")[:2])


def test_two_commands_do_all_the_set_up():
    for line in (SET_UP_AND_SEARCH, SET_UP_AND_TEST):
        assert "\n" not in line
        assert "venv .venv && .venv/bin/pip install -q -c constraints.txt -e " in line
    assert SET_UP_AND_TEST in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_commands_parse(words):
    assert COMMANDS[words[0]].make_context(words[0], words[1:])


def test_commands_are_all_shown():
    assert {words[0] for words in command_lines()} == set(COMMANDS)


@pytest.mark.parametrize(
    "words", [w for w in command_lines() if w[0] == "show" or "--pin" in w], ids=" ".join
)
def test_cheap_commands_work(words, capsys):
    cheap = ["--transport", "lockstep"] if words[0] == "run" else []
    assert main([*words, *cheap]) == 0
    assert capsys.readouterr().out


def test_python_works(capsys):
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    seconds, peak = capsys.readouterr().out.split()
    assert float(seconds) > 0
    assert int(peak) > 0


def test_flags_exist():
    known = {flag for command in COMMANDS.values() for p in command.params for flag in p.opts}
    known |= {flag for command in COMMANDS.values() for p in command.params
              for flag in p.secondary_opts}  # fmt: skip
    scripts = "".join(path.read_text() for path in (ROOT / "scripts").glob("*.py"))
    known |= set(re.findall(r'"(--[a-z][a-z-]+)"', scripts))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))
    assert named <= known


def test_the_house_is_all_there():
    (house,) = [block for block in blocks("text") if "ir/ " in block]
    listed = set(re.findall(r"([a-z]+)/ {2,}", house))
    packages = {path.parent.name for path in (ROOT / "autoplan").glob("*/__init__.py")}
    assert listed == packages


def test_places_exist():
    named = set(re.findall(r"`((?:autoplan|scripts|tests|models|\.ci|[a-z]+)/[\w./]*)`", README))
    assert named
    missing = [n for n in named if not (ROOT / n).exists() and not (ROOT / "autoplan" / n).exists()]
    assert missing in ([], ["stacks/"])
    assert (ROOT / "hardware_profiles" / "stacks").is_dir()


def test_every_dependency_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"]]
    needed += project["project"]["optional-dependencies"]["dev"]
    names = {pin.partition("==")[0] for pin in pins}
    assert {re.match(r"[\w-]+", need).group() for need in needed} <= names
    assert "torch==2.13.0" in pins
    assert all("==" in need for need in project["build-system"]["requires"])
