"""tools/sizes.py, each rule on a file that breaks it and on one that does not."""

from pathlib import Path

import pytest

from tools.sizes import main


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "src/slipstream"
    package.mkdir(parents=True)
    return package


def write(package: Path, name: str, text: str) -> None:
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text(text, encoding="utf-8")


def complaints(package: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run the tool, check that its exit code says what it prints, and return the complaints without the summary."""
    code = main(package.parents[1])
    *lines, _ = capsys.readouterr().out.splitlines()
    assert code == (1 if lines else 0)
    return lines


def function_of(num_lines: int) -> str:
    return "def work():\n" + "    x = 1\n" * (num_lines - 1)


def test_a_file_may_have_300_lines_and_no_more(package, capsys):
    write(package, "fits.py", "x = 1\n" * 300)
    write(package, "long.py", "x = 1\n" * 301)
    (complaint,) = complaints(package, capsys)
    assert complaint.startswith("src/slipstream/long.py:1: file has 301 lines")


def test_a_function_may_have_60_lines_and_no_more(package, capsys):
    write(package, "fits.py", function_of(60))
    write(package, "long.py", "\n\nclass Room:\n    async def work(self):\n" + "        x = 1\n" * 60)
    (complaint,) = complaints(package, capsys)
    assert complaint.startswith("src/slipstream/long.py:4: work has 61 lines")


def test_functions_over_20_lines_are_only_counted(package, capsys):
    write(package, "room.py", function_of(20) + function_of(21) + function_of(22))
    assert main(package.parents[1]) == 0
    assert "3 functions, 2 of them over 20 lines, 0 complaints" in capsys.readouterr().out


def test_only_the_two_faces_may_fill_their_init(package, capsys):
    write(package, "__init__.py", "x = 1\n")
    write(package, "serve/__init__.py", "x = 1\n")
    write(package, "flow/__init__.py", "")
    write(package, "cache/__init__.py", "x = 1\n")
    (complaint,) = complaints(package, capsys)
    assert complaint.startswith("src/slipstream/cache/__init__.py:1:")


@pytest.mark.parametrize("text", ["from typing import TYPE_CHECKING\n", "import typing\nx = typing.TYPE_CHECKING\n"])
def test_type_checking_is_refused_however_it_is_reached(package, capsys, text):
    write(package, "room.py", text)
    (complaint,) = complaints(package, capsys)
    assert "TYPE_CHECKING" in complaint


def test_a_word_in_a_string_is_not_type_checking(package, capsys):
    write(package, "room.py", 'x = "TYPE_CHECKING"\n')
    assert complaints(package, capsys) == []


def test_a_non_ascii_character_is_named_with_its_line(package, capsys):
    write(package, "room.py", "x = 1\n# na\u00efve\n")
    (complaint,) = complaints(package, capsys)
    assert complaint.startswith("src/slipstream/room.py:2:")


@pytest.mark.parametrize("call", ["x.item()", "x.tolist()", "x.cpu()", "x.cpu(memory_format=None)"])
def test_a_synchronisation_in_a_device_room_needs_its_reason(package, capsys, call):
    write(package, "runner/plain.py", f"y = {call}\n")
    write(package, "runner/empty.py", f"y = {call}  # sync:\n")
    write(package, "runner/marked.py", f"y = {call}  # sync: the host reads this cycle's tokens\n")
    write(package, "weights/room.py", f"y = {call}\n")
    assert [line.split(":")[0] for line in complaints(package, capsys)] == [
        "src/slipstream/runner/empty.py",
        "src/slipstream/runner/plain.py",
    ]


def test_the_mark_stands_on_the_line_of_the_call(package, capsys):
    write(package, "verify/marked.py", "y = (\n    x.sum()\n    .item()  # sync: one number a run\n)\n")
    write(package, "verify/unmarked.py", "y = (  # sync: one number a run\n    x.sum()\n    .item()\n)\n")
    (complaint,) = complaints(package, capsys)
    assert complaint.startswith("src/slipstream/verify/unmarked.py:3:")


def test_a_name_that_merely_resembles_a_synchronisation_passes(package, capsys):
    write(package, "draft/room.py", "for key, value in x.items():\n    y = value.item\n")
    assert complaints(package, capsys) == []
