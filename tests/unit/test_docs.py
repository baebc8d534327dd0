"""The documentation points at things that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_the_one_guess_index_names_only_files_that_exist():
    rows = re.findall(r"^\| .+? \| (.+) \|$", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([^`<]+[/.][^`<]*)`", row)}
    assert len(names) > 30
    assert sorted(n for n in names if not any((base / n).exists() for base in (ROOT / "src/slipstream", ROOT))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:\s]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
