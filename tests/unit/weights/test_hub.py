"""What the hub's client does is asked for rightly, and its failures are one sentence."""

import errno
import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from slipstream.weights import hub


class Client:
    """Stands in for snapshot_download over a repository of files."""

    def __init__(self, folder: Path, files: tuple[str, ...]) -> None:
        self.folder, self.files, self.calls = folder, files, 0

    def __call__(
        self, repo: str, *, allow_patterns: list[str], ignore_patterns: list[str], local_files_only: bool
    ) -> str:
        self.calls += 1
        for name in self.files:
            wanted = any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns)
            if wanted and not any(fnmatch.fnmatch(name, pattern) for pattern in ignore_patterns):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).touch()
        return str(self.folder)

    def downloaded(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


TEXTS = ("config.json", "tokenizer.json", "merges.txt", "tokenizer.model", "chat_template.jinja")


def test_safetensors_are_taken_and_second_copies_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = ("model-1.safetensors", "pytorch_model.bin", "consolidated.safetensors", "original/params.json")
    client = Client(tmp_path, (*TEXTS, *weights, "README.md", "tf_model.h5"))
    monkeypatch.setattr(hub, "snapshot_download", client)
    assert hub.pull_snapshot("org/model") == tmp_path
    assert client.downloaded() == {*TEXTS, "model-1.safetensors"}


def test_bin_files_are_taken_where_there_is_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(tmp_path, (*TEXTS, "pytorch_model.bin"))
    monkeypatch.setattr(hub, "snapshot_download", client)
    hub.pull_snapshot("org/model")
    assert client.downloaded() == {*TEXTS, "pytorch_model.bin"}


def _refused(kind: type, message: str) -> Exception:
    """Make one of the client's errors without the answer of a server that it wants."""
    return kind.__new__(kind, message)


FAILURES: tuple[tuple[Any, str], ...] = (
    (
        lambda: _refused(GatedRepoError, "403"),
        r"asks for its licence .* https://huggingface\.co/org/model, then: hf auth",
    ),
    (
        lambda: _refused(RepositoryNotFoundError, "404"),
        r"there is no public model org/model on the hub; check its name",
    ),
    (lambda: LocalEntryNotFoundError("no network"), r"the hub cannot be reached for org/model; check the network"),
    (lambda: OSError(errno.ENOSPC, "full"), r"the disk is full before org/model is whole; .* HF_HOME"),
    (lambda: RuntimeError("peer went away.\nmore"), r"could not be downloaded \(peer went away\); pull again"),
)


@pytest.mark.parametrize(("failure", "words"), FAILURES)
def test_a_failed_download_is_one_sentence(monkeypatch: pytest.MonkeyPatch, failure: Any, words: str) -> None:
    monkeypatch.setattr(hub, "snapshot_download", mock.Mock(side_effect=failure()))
    with pytest.raises(ValueError, match=words) as caught:
        hub.pull_snapshot("org/model")
    assert "\n" not in str(caught.value)


def test_a_repository_that_is_not_cached_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "snapshot_download", mock.Mock(side_effect=LocalEntryNotFoundError("absent")))
    assert hub.find_snapshot("org/model") is None
