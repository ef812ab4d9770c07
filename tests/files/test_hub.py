"""Hub ids: the local cache, by every setting that moves it; the network only where asked."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from autoplan.errors import InputError
from autoplan.files.data import data_folder
from autoplan.files.hf_config import load_model
from autoplan.files.hub import cache_folder, cached_config, is_hub_id
from autoplan.workflow import show

ID = "someone/Nice-Model"
CONFIG = (data_folder("models") / "tiny-qwen2.json").read_text()


def put(cache: Path, revision: str, text: str = CONFIG, model: str = ID) -> Path:
    """A config in a cache folder, as huggingface_hub lays it out."""
    folder = cache / f"models--{model.replace('/', '--')}" / "snapshots" / revision
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(text)
    return folder / "config.json"


def point(cache: Path, revision: str) -> None:
    refs = cache / f"models--{ID.replace('/', '--')}" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(revision)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_cached_model_is_read_by_its_id(cache: Path) -> None:
    put(cache, "abc")
    point(cache, "abc")
    config = load_model(ID)
    assert (config.family, config.name) == ("qwen2", "Nice-Model")


def test_show_takes_an_id_too(cache: Path) -> None:
    put(cache, "abc")
    shown = show(ID)
    assert (shown.kind, shown.document["family"]) == ("model", "qwen2")


def test_main_decides_between_revisions(cache: Path) -> None:
    put(cache, "old")
    new = put(cache, "new")
    assert cached_config(ID) is None
    point(cache, "new")
    assert cached_config(ID) == new


def test_the_only_revision_needs_no_main(cache: Path) -> None:
    assert cached_config(ID) is None
    only = put(cache, "abc")
    assert cached_config(ID) == only


def test_the_cache_goes_before_a_bundled_namesake(cache: Path) -> None:
    assert load_model("someone/tiny-llama").family == "llama"
    put(cache, "abc", model="someone/tiny-llama")
    assert load_model("someone/tiny-llama").family == "qwen2"


def test_where_the_cache_lies(monkeypatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path.home() / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/home")
    assert cache_folder() == Path("/home/hub")
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", "/older")
    assert cache_folder() == Path("/older")
    monkeypatch.setenv("HF_HUB_CACHE", "/newer")
    assert cache_folder() == Path("/newer")


def test_an_id_that_is_nowhere_names_the_cache_and_the_flag(cache: Path) -> None:
    with pytest.raises(InputError, match="--download fetches it") as caught:
        load_model(ID)
    assert str(cache) in str(caught.value)


def test_downloading_needs_the_library(cache: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"autoplan\[hub\]"):
        load_model(ID, download=True)


def test_downloading_asks_the_library_for_the_config_alone(cache: Path, monkeypatch) -> None:
    asked = []

    def hf_hub_download(model: str, file: str, cache_dir: Path) -> str:
        asked.append((model, file, cache_dir))
        if model != ID:
            raise RuntimeError("404 Client Error\nfor this and that")
        return str(put(cache, "abc"))

    library = ModuleType("huggingface_hub")
    library.hf_hub_download = hf_hub_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    assert load_model(ID, download=True).family == "qwen2"
    assert load_model(ID, download=True).family == "qwen2"
    assert asked == [(ID, "config.json", cache)]
    with pytest.raises(InputError, match="404 Client Error, allowed"):
        load_model("someone/else", download=True)


def test_what_may_be_an_id() -> None:
    assert is_hub_id("Qwen/Qwen2.5-7B")
    assert not any(map(is_hub_id, ("llama", "a/b/c", "../x", "./x", "/x", "a/", "~/x")))
