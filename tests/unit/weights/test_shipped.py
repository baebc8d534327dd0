"""The shipped draft is found in a checkout and in a wheel, and nowhere else."""

import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.weights import shipped


def lay_out(root: Path, package: str, drafts: str) -> Path:
    (root / package).mkdir(parents=True)
    folder = root / drafts / "tiny-eagle3"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_checkout_finds_its_own_drafts(tmp_path, monkeypatch):
    folder = lay_out(tmp_path, "src/slipstream", "drafts")
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "src/slipstream")
    assert shipped.shipped_draft("tiny") == folder


def test_a_wheel_finds_its_package_data(tmp_path, monkeypatch):
    folder = lay_out(tmp_path, "site-packages/slipstream", "site-packages/slipstream/_drafts")
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "site-packages/slipstream")
    assert shipped.shipped_draft("Tiny") == folder


def test_a_wheel_ignores_drafts_that_merely_lie_near_it(tmp_path, monkeypatch):
    lay_out(tmp_path, "site-packages/slipstream", "drafts")
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "site-packages/slipstream")
    assert shipped.shipped_draft("tiny") is None


@pytest.mark.parametrize("name", ["", "unknown", "../tiny", "org/tiny", "/tiny"])
def test_what_is_not_the_bare_name_of_a_shipped_model_has_no_draft(tmp_path, monkeypatch, name):
    lay_out(tmp_path, "src/slipstream", "drafts")
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "src/slipstream")
    assert shipped.shipped_draft(name) is None


@pytest.mark.parametrize(
    ("model", "name"),
    [("smollm2-135m", "smollm2-135m"), ("models/smollm2-135m/Model.Q4_1.gguf", "smollm2-135m"), ("Model.gguf", "")],
)
def test_a_pulled_gguf_goes_by_the_name_it_was_pulled_by(model, name):
    assert shipped.short_name(Path(model)) == name


def test_looking_for_the_shipped_draft_does_not_import_torch():
    code = "import sys, slipstream.weights.shipped; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
