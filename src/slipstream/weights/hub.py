"""Pull models from the Hugging Face hub, and find those in its cache."""

import errno
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

TEXTS = ("*.json", "*.model", "*.txt", "*.jinja")
SAFETENSORS, BIN = "*.safetensors", "*.bin"
# Second copies of the same weights, in layouts that nobody here reads.
IGNORED = ("original/*", "consolidated*", "onnx/*", "openvino/*")


def find_snapshot(repo: str) -> Path | None:
    """Find a repository in the cache; None where it is not there, or not whole."""
    try:
        return _snapshot(repo, SAFETENSORS, offline=True)
    except LocalEntryNotFoundError:
        return None


def pull_snapshot(repo: str) -> Path:
    """Download a repository: its safetensors, and .bin files only where it has no others."""
    try:
        folder = _snapshot(repo, SAFETENSORS, offline=False)
        if any(folder.glob(SAFETENSORS)):
            return folder
        return _snapshot(repo, BIN, offline=False)
    except Exception as error:  # the hub's client raises its own errors, its HTTP client's and the system's
        raise ValueError(_explain(repo, error)) from None


def _snapshot(repo: str, weights: str, *, offline: bool) -> Path:
    patterns = [*TEXTS, weights]
    found = snapshot_download(repo, allow_patterns=patterns, ignore_patterns=list(IGNORED), local_files_only=offline)
    return Path(found)


def _explain(repo: str, error: Exception) -> str:
    """Say in one sentence why a download failed and what helps."""
    if isinstance(error, GatedRepoError):
        return (
            f"{repo} asks for its licence to be accepted; do so at https://huggingface.co/{repo}, then: hf auth login"
        )
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no public model {repo} on the hub; check its name, or log in with: hf auth login"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full before {repo} is whole; free some space, or set HF_HOME to a folder on another disk"
    if isinstance(error, LocalEntryNotFoundError):
        return f"the hub cannot be reached for {repo}; check the network, then pull again"
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return f"{repo} could not be downloaded ({reason}); pull again to go on from where it stopped"
