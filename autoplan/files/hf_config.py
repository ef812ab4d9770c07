"""Hugging Face `config.json` -> `ir.model.DecoderConfig`: dense decoders.

    llama gemma mistral qwen2 qwen3 phi3 gpt_neox phi     `hf_rotary`
    gpt2 opt                                              `hf_learned`

Absent optional keys take the defaults of the `transformers` configuration classes. Keys that say
nothing about the computation are ignored, as there; but an unknown key that nearly spells one that
is absent is a problem, because its default would silently replace what the user meant. Sizes of
weights are never defaulted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, Problem
from autoplan.files.data import bundled_names, exists, find_file, is_file
from autoplan.files.hf_learned import read_gpt2, read_opt
from autoplan.files.hf_rotary import (
    read_gemma,
    read_llama,
    read_mistral,
    read_neox,
    read_phi,
    read_phi3,
    read_qwen2,
    read_qwen3,
)
from autoplan.files.hub import cache_folder, cached_config, download_config, is_hub_id
from autoplan.files.text import read_json
from autoplan.ir.model import DecoderConfig

FOLDER = "models"

_FAMILIES: Mapping[str, Callable[[dict[str, Any], str, str], DecoderConfig]] = {
    "llama": read_llama,
    "gpt2": read_gpt2,
    "gemma": read_gemma,
    "mistral": read_mistral,
    "qwen2": read_qwen2,
    "qwen3": read_qwen3,
    "opt": read_opt,
    "gpt_neox": read_neox,
    "phi": read_phi,
    "phi3": read_phi3,
}
"""`model_type` -> reader of (document, source, name)."""


def load_model(spec: str, download: bool = False) -> DecoderConfig:
    """The model that a path or a name means.

    Args:
        spec: a `config.json` or other file, a folder that holds `config.json`, a bundled name, or a
            hub id: in the local cache, or with a bundled name as its last part
            (`meta-llama/Llama-2-7b-hf`).
        download: whether a hub id that is neither may be fetched.

    Raises:
        InputError: unknown model, or a config with problems: all of them.
    """
    path, name = find_model(spec, download)
    return parse_hf_config(read_json(path, finite=False), str(path), name)


def find_model(spec: str, download: bool = False) -> tuple[Path, str]:
    """(config file, model's name) of what `load_model` takes.

    Raises:
        InputError: there is none.
    """
    path, last = Path(spec), spec.rpartition("/")[2]
    if is_file(path / "config.json"):
        return path / "config.json", path.resolve().name
    if not exists(path) and is_hub_id(spec):
        cached = cached_config(spec)
        if cached:
            return cached, last
        bundled = last.lower().removesuffix("-hf")
        if bundled in bundled_names(FOLDER):
            return find_file(bundled, FOLDER, "model"), bundled
        if download:
            return download_config(spec), last
        if path.suffix != ".json":
            allowed = f"a path, or a model that is bundled or in {cache_folder()}"
            raise InputError(Problem("model", "", f"`{spec}`", allowed, "--download fetches it"))
    path = find_file(spec, FOLDER, "model")
    return path, path.resolve().parent.name if path.stem == "config" else path.stem


def parse_hf_config(document: object, source: str, name: str) -> DecoderConfig:
    """The decoder that the text of a `config.json` describes.

    Args:
        document: parsed JSON.
        source: the file, for messages.
        name: name of the model.

    Raises:
        InputError: every problem at once.
    """
    if not isinstance(document, dict):
        raise InputError(Problem(source, "$", type(document).__name__, "an object"))
    model_type = document.get("model_type")
    read = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if read is None:
        allowed = f"one of {', '.join(_FAMILIES)}"
        found = "nothing" if "model_type" not in document else f"`{model_type}`"
        hint = _misspelt_key(document)
        raise InputError(Problem(source, "$.model_type", found, allowed, hint))
    return read(document, source, name)


def _misspelt_key(document: Mapping[str, Any]) -> str:
    keys = get_close_matches("model_type", [k for k in document if k != "model_type"], n=1)
    return f"`{keys[0]}` looks like a misspelling of `model_type`" if keys else ""
