"""Models of the Hugging Face hub: in its local cache, and, only where asked, over the network.

    HF_HUB_CACHE (or HF_HOME/hub, or ~/.cache/huggingface/hub)
      models--ORG--NAME/refs/main                      the newest revision that was fetched
      models--ORG--NAME/snapshots/REVISION/config.json

The network is left to `huggingface_hub`, an optional extra.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from autoplan.errors import InputError, Problem
from autoplan.files.data import is_file

CONFIG = "config.json"
EXTRA = "pip install 'autoplan[hub]'"
_ID = re.compile(r"^[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*$")


def is_hub_id(spec: str) -> bool:
    """Whether a text may be `organisation/name`."""
    return bool(_ID.match(spec))


def cache_folder() -> Path:
    """Where the hub's files are kept. Source: huggingface_hub, `constants`."""
    explicit = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def cached_config(model: str) -> Path | None:
    """The config of a hub id in the local cache, or None.

    It is that of the newest revision fetched, or of the only one there is.
    """
    folder = cache_folder() / f"models--{model.replace('/', '--')}"
    main = folder / "refs" / "main"
    if is_file(main):
        path = folder / "snapshots" / main.read_text().strip() / CONFIG
        if is_file(path):
            return path
    found = sorted(path for path in folder.glob(f"snapshots/*/{CONFIG}") if is_file(path))
    return found[0] if len(found) == 1 else None


def download_config(model: str) -> Path:
    """The config of a hub id, fetched into the local cache.

    Raises:
        InputError: `huggingface_hub` is not installed, or the hub does not give the file.
    """
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        allowed = "the package `huggingface_hub`"
        raise InputError(Problem("--download", "", "not installed", allowed, EXTRA)) from None
    try:
        return Path(hf_hub_download(model, CONFIG, cache_dir=cache_folder()))
    except Exception as error:  # whatever the library raises means: no config
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        allowed = "a model of the hub with a config.json that you may read"
        raise InputError(Problem("--download", model, reason, allowed)) from None
