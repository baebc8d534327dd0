"""A model is found by path, pulled name or hub id, and the error says what to do when it is not."""

import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from slipstream.weights import store


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def snapshot(tmp_path: Path, repo: str) -> Path:
    """Lay a repository out as the hub's cache does."""
    root = tmp_path / "hub" / f"models--{repo.replace('/', '--')}"
    commit = "0" * 40
    (root / "refs").mkdir(parents=True)
    (root / "refs/main").write_text(commit)
    folder = root / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLIPSTREAM_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"SLIPSTREAM_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/slipstream"),
        ({"SLIPSTREAM_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/slipstream"),
        ({"SLIPSTREAM_CACHE": "~/d", "HOME": "/c"}, "/c/d"),
    ],
)
def test_the_cache_lies_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert store.cache_dir() == Path(expected)


def test_a_directory_and_a_gguf_file_are_themselves(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert store.resolve_model(str(tmp_path)) == tmp_path
    assert store.resolve_model(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"


def test_a_pulled_name_is_its_file_in_the_cache() -> None:
    target = store.cache_dir() / "models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"
    target.parent.mkdir(parents=True)
    target.touch()
    assert store.resolve_model("smollm2-135m") == target
    assert store.pull("smollm2-135m") == target


def test_a_cached_hub_id_is_its_snapshot(tmp_path: Path) -> None:
    folder = snapshot(tmp_path, "org/model-1.5B")
    assert store.resolve_model("org/model-1.5B") == folder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm2-135m", "not on this machine yet; run: slipstream pull smollm2-135m"),
        ("org/model", "neither a path here nor a cached model; check it, or run: slipstream pull org/model"),
        ("./no/such/folder", "'./no/such/folder' is not a model; give a directory"),
        ("smollm", "'smollm' is not a model; .* slipstream pull smollm2-135m"),
    ],
)
def test_a_model_that_is_not_here_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        store.resolve_model(name)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"notes\.txt is not a model; give a directory or a \.gguf file"):
        store.resolve_model(str(tmp_path / "notes.txt"))


def test_a_name_that_cannot_be_pulled_is_answered_with_those_that_can() -> None:
    with pytest.raises(ValueError, match="'gpt5' cannot be pulled; the names known are smollm2-135m, or ORG/NAME"):
        store.pull("gpt5")


def test_the_store_does_not_import_torch() -> None:
    code = "import sys, slipstream.weights.store; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
