"""Configurations of other training software -> `ir.launch.Launch`.

    a shell script or a command line     `launch_shell`, then by its arguments
      Megatron-LM's, also as its log repeats them               `launch_megatron`
      torchtitan's, with the TOML that they name, or a TOML     `launch_torchtitan`
      DeepSpeed's, with the JSON that they name, or a JSON      `launch_deepspeed`

Every setting is either understood, known not to change a step, understood but without a price
(`Launch.unpriced`), or listed as not understood (`Launch.unread`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, Problem
from autoplan.files import launch_deepspeed, launch_megatron, launch_torchtitan
from autoplan.files.data import is_file
from autoplan.files.launch_deepspeed import flattened, read_deepspeed
from autoplan.files.launch_megatron import read_megatron
from autoplan.files.launch_settings import Settings, parse_flags
from autoplan.files.launch_shell import Script, read_script
from autoplan.files.launch_torchtitan import read_toml, read_torchtitan
from autoplan.files.problems import Problems, shown
from autoplan.files.text import parse_json, read_text
from autoplan.ir.launch import Launch

ALLOWED = (
    "a launch script or arguments of Megatron-LM, a TOML or command of torchtitan, or a JSON or "
    "command of DeepSpeed"
)
COMMAND_LINE = "command line"
_LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "srun", "mpirun", "python", "python3")
_BATCH = re.compile(r"^#SBATCH\s+(--?[\w-]+)[= ](\S+)", re.MULTILINE)
_DUMP = re.compile(r"-+ arguments -+\s*\n(.*?)-+ end of arguments -+", re.DOTALL)
_DUMP_LINE = re.compile(r"(\w+) \.{2,} (.*?)\s*$", re.MULTILINE)
_REDIRECTION = re.compile(r"\d?>+")


@dataclass(frozen=True, slots=True)
class Command:
    """A training command.

    Attributes:
        launcher: flags before the training script.
        flags: the training script's.
        program: the training script, or "".
    """

    launcher: Mapping[str, tuple[Any, str]]
    flags: Mapping[str, tuple[Any, str]]
    program: str


def read_launch(path_or_text: str | Path) -> Launch:
    """What a configuration decides.

    Args:
        path_or_text: a file, or the text of a command.

    Raises:
        InputError: no such file, of no known kind, or values that cannot be; every problem at once.
    """
    text = str(path_or_text)
    path = Path(path_or_text)
    if not is_file(path) and ("\n" in text or " --" in text or text.startswith("--")):
        return parse_launch(text, COMMAND_LINE, Path())
    return parse_launch(read_text(path, ALLOWED), str(path), path.parent)


def parse_launch(text: str, source: str, folder: Path) -> Launch:
    """The same of a text.

    Args:
        text: of the configuration.
        source: the file, for messages.
        folder: where files that it names are looked for.
    """
    suffix = Path(source).suffix.lower()
    problems = Problems(source)
    dump = read_dump(text)
    if dump:
        launch = read_megatron(Settings(problems, dump), whole_dump=True)
    elif suffix == ".toml":
        launch = read_torchtitan(Settings(problems, read_toml(text, source)))
    elif suffix == ".json":
        launch = _json(text, folder, problems)
    else:
        launch = _script(text, folder, problems)
    problems.check()
    return launch


def read_dump(text: str) -> dict[str, Any]:
    """The arguments that Megatron's log repeats, or {}."""
    found = _DUMP.search(text)
    lines = _DUMP_LINE.findall(found[1]) if found else ()
    return {name: value for name, value in lines if value != "None"}


def _script(text: str, folder: Path, problems: Problems) -> Launch:
    script = read_script(text)
    command = _training_command(script)
    settings, stack = _recognised(command, script, folder, problems)
    if stack == "torchtitan":
        launch = read_torchtitan(settings)
    elif stack == "megatron":
        launch = read_megatron(settings)
    elif stack == "deepspeed":
        launch = read_deepspeed(settings)
    else:
        raise InputError(Problem(problems.source, "", "no command with their arguments", ALLOWED))
    per_node, devices = _started(command, script, text)
    return replace(
        launch,
        devices=launch.devices or devices,
        per_node=per_node,
        unread=(*launch.unread, *script.unread),
    )


def _training_command(script: Script) -> Command:
    """The command with the most flags; of a script that only fills variables, all of these."""
    lines = [words for words in script.commands if any(w.startswith("--") for w in words)]
    if not lines:
        lines = [[w for text in script.variables.values() for w in text.split()]]
    words = _without_redirections(max(lines, key=lambda w: sum(x.startswith("--") for x in w)))
    at = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if at is None:
        modules = [i + 1 for i, word in enumerate(words[:-1]) if word == "-m"]
        at = next((i for i in modules if not words[i].startswith("torch.distributed")), None)
    if at is not None:
        return Command(parse_flags(words[:at]), parse_flags(words[at + 1 :]), words[at])
    launched = words and words[0].rpartition("/")[2] in _LAUNCHERS
    flags = parse_flags(words)
    return Command(flags if launched else {}, flags, "")


def _without_redirections(words: Sequence[str]) -> list[str]:
    """Words up to the first redirection."""
    for index, word in enumerate(words):
        if _REDIRECTION.match(word):
            return list(words[:index])
    return list(words)


def _recognised(
    command: Command, script: Script, folder: Path, problems: Problems
) -> tuple[Settings, str]:
    """The settings of a command with those of the files that it names, and whose they are."""
    source = problems.source
    values = {key: value for key, (value, _) in command.flags.items()}
    stands = {key: text for key, (_, text) in command.flags.items()}
    sections = {key.partition(".")[0] for key in values if "." in key}
    toml = values.get("job.config_file") or script.variables.get("CONFIG_FILE", "")
    if sections & set(launch_torchtitan.SECTIONS) or str(toml).endswith(".toml"):
        table = read_toml(_named_file(str(toml), folder, script, source), str(toml)) if toml else {}
        return Settings(problems, {**table, **values}, stands), "torchtitan"
    document: dict[str, Any] = {}
    name = values.get("deepspeed_config") or values.get("deepspeed")
    if isinstance(name, str) and name.endswith(".json"):
        document = _flat_json(name, _named_file(name, folder, script, source))
    marks = len(launch_megatron.MARKS & values.keys())
    if marks > len(launch_deepspeed.MARKS & values.keys()):
        zero = document.get("zero_optimization.stage")
        values |= {} if zero is None else {"zero_stage": zero}
        return Settings(problems, values, stands), "megatron"
    if launch_deepspeed.MARKS & {*values, *document}:
        return Settings(problems, {**document, **values}, stands), "deepspeed"
    return Settings(problems, values, stands), ""


def _json(text: str, folder: Path, problems: Problems) -> Launch:
    """DeepSpeed's own file, or arguments of a trainer or of Megatron as JSON."""
    source = problems.source
    table = _flat_json(source, text)
    if launch_megatron.MARKS & table.keys():
        return read_megatron(Settings(problems, table))
    named = table.get("deepspeed")
    if isinstance(named, str):
        table = {**_flat_json(named, _named_file(named, folder, Script(), source)), **table}
    if not launch_deepspeed.MARKS & table.keys():
        raise InputError(Problem(source, "", "none of their keys", ALLOWED))
    return read_deepspeed(Settings(problems, table))


def _flat_json(source: str, text: str) -> dict[str, Any]:
    document = parse_json(text, source)
    if not isinstance(document, dict):
        raise InputError(Problem(source, "$", shown(document), "an object"))
    return flattened(document)


def _named_file(name: str, folder: Path, script: Script, source: str) -> str:
    """The text of a file that a command names: written by the script itself, or beside it."""
    if name in script.files:
        return script.files[name]
    for path in (folder / name, folder / Path(name).name, Path(name)):
        if is_file(path):
            return read_text(path)
    allowed = f"a file in {folder}"
    raise InputError(Problem(source, "", f"{name}, which is not there", allowed))


def _started(command: Command, script: Script, text: str) -> tuple[int | None, int | None]:
    """(devices of a node, of all nodes) that a launcher is told to start."""
    table: dict[str, Any] = {key: value for key, (value, _) in command.launcher.items()}
    for flag, value in _BATCH.findall(text):
        table.setdefault({"-N": "nodes"}.get(flag, flag.lstrip("-").replace("-", "_")), value)
    for name in ("NPROC_PER_NODE", "GPUS_PER_NODE", "NGPU", "NNODES", "NUM_NODES"):
        if name in script.variables:
            table.setdefault(name.lower(), script.variables[name])
    per_node = _first(
        table, "nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node", "ngpu", "gres"
    )
    nodes = _first(table, "nnodes", "num_nodes", "nodes", "num_machines")
    total = _first(table, "num_processes")
    if total:
        return (total // nodes if nodes else None), total
    if not per_node:
        return None, None
    known = nodes or (1 if not {"nnodes", "num_nodes", "nodes"} & table.keys() else None)
    return per_node, per_node * known if known else None


def _first(table: Mapping[str, Any], *keys: str) -> int | None:
    """The first of some keys that holds a number, which may follow a colon."""
    for key in keys:
        word = str(table.get(key, "")).rpartition(":")[2]
        if word.isdigit() and int(word) > 0:
            return int(word)
    return None
