"""The house rules no linter knows: small files, small functions, empty `__init__`, ASCII, no hidden synchronisation.

Run `python tools/sizes.py [ROOT]`: each complaint is a line `path:line: what`, and any complaint fails the build.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
SMALL_FUNCTION_LINES = 20

PACKAGE = Path("src/slipstream")
FACES = (PACKAGE / "__init__.py", PACKAGE / "serve/__init__.py")  # the only ones that may hold code
DEVICE_ROOMS = ("runner", "draft", "verify", "attention", "layers", "models", "engine")
SYNCHRONISING = ("item", "tolist", "cpu")
SYNC_MARK = re.compile(r"# sync: \S")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, read and parsed once."""

    path: Path  # relative to the repository's root
    lines: tuple[str, ...]
    tree: ast.Module

    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))


@dataclass(frozen=True, slots=True, order=True)
class Complaint:
    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def main(root: Path) -> int:
    sources = read_sources(root)
    complaints = sorted({complaint for source in sources for complaint in inspect(source)})
    for complaint in complaints:
        print(complaint)
    print(summary(sources, num_complaints=len(complaints)))
    return 1 if complaints else 0


def read_sources(root: Path) -> list[Source]:
    return [read(path, root) for path in sorted((root / "src").rglob("*.py"))]


def read(path: Path, root: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path=path.relative_to(root), lines=tuple(text.splitlines()), tree=ast.parse(text, str(path)))


def inspect(source: Source) -> Iterator[Complaint]:
    for rule in (long_file, long_functions, full_init, type_checking, non_ascii, hidden_synchronisation):
        for line, what in rule(source):
            yield Complaint(source.path, line, what)


def long_file(source: Source) -> Iterator[tuple[int, str]]:
    if len(source.lines) > MAX_FILE_LINES:
        yield 1, f"file has {len(source.lines)} lines, at most {MAX_FILE_LINES}: it holds more than one idea"


def long_functions(source: Source) -> Iterator[tuple[int, str]]:
    for function in source.functions():
        if num_lines(function) > MAX_FUNCTION_LINES:
            yield function.lineno, f"{function.name} has {num_lines(function)} lines, at most {MAX_FUNCTION_LINES}"


def full_init(source: Source) -> Iterator[tuple[int, str]]:
    if source.path.name == "__init__.py" and source.lines and source.path not in FACES:
        yield 1, "__init__.py is empty everywhere but in the package's face and in serve/"


def type_checking(source: Source) -> Iterator[tuple[int, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.alias) and name_of(node) == "TYPE_CHECKING":
            yield node.lineno, "TYPE_CHECKING dodges an import cycle: move the shared part down a floor"


def name_of(node: ast.Name | ast.Attribute | ast.alias) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return name


def non_ascii(source: Source) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.lines, start=1):
        if not line.isascii():
            strange = next(character for character in line if not character.isascii())
            yield number, f"{strange!r} is not ASCII: write it as an escape"


def hidden_synchronisation(source: Source) -> Iterator[tuple[int, str]]:
    if not source.path.is_relative_to(PACKAGE) or source.path.relative_to(PACKAGE).parts[0] not in DEVICE_ROOMS:
        return
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        line = node.func.end_lineno or node.lineno
        if node.func.attr in SYNCHRONISING and not SYNC_MARK.search(source.lines[line - 1]):
            yield line, f".{node.func.attr}() waits for the device: mark the line `# sync: <why>` or avoid it"


def num_lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def summary(sources: list[Source], *, num_complaints: int) -> str:
    lengths = [num_lines(function) for source in sources for function in source.functions()]
    num_larger = sum(length > SMALL_FUNCTION_LINES for length in lengths)
    total = sum(len(source.lines) for source in sources)
    return (
        f"sizes: {len(sources)} files, {total} lines, {len(lengths)} functions, "
        f"{num_larger} of them over {SMALL_FUNCTION_LINES} lines, {num_complaints} complaints"
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]))
