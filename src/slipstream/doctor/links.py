"""How the GPUs of a machine are wired, as nvidia-smi tells it."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

SECONDS = 20
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")  # the matrix underlines its heading
NVLINK = re.compile(r"NV(\d+)")
RATE = re.compile(r"Link \d+: ([\d.]+) GB/s")


class LinkKind(Enum):
    """What lies between two GPUs, fastest first."""

    NVLINK = "NVLink"
    PCIE = "PCIe"  # a switch (PIX, PXB) or one host bridge (PHB)
    SYSTEM = "SYS"  # several host bridges (NODE) or processor sockets (SYS)
    UNKNOWN = "unknown"


PCIE_CODES, SYSTEM_CODES = ("PIX", "PXB", "PHB"), ("NODE", "SYS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A pair of GPUs."""

    first: int
    second: int
    kind: LinkKind
    code: str  # nvidia-smi's word, such as NV18 or PXB


def read_links() -> tuple[Link, ...]:
    """Ask nvidia-smi; empty where it cannot be asked."""
    return parse_matrix(_ask("topo", "-m"))


def read_rates() -> dict[int, float]:
    """GB/s of all of a GPU's NVLinks together, in one direction; empty where nvidia-smi shows none."""
    return parse_rates(_ask("nvlink", "--status"))


def parse_matrix(text: str) -> tuple[Link, ...]:
    """Read `nvidia-smi topo -m`: a heading of device names, then a row for each device."""
    lines = TERMINAL_CODES.sub("", text).splitlines()
    columns: list[str] = []
    links: list[Link] = []
    for line in lines:
        words = line.split()
        if not columns:
            columns = words if words[:1] == ["GPU0"] else []
            continue
        if not words or _gpu(words[0]) is None:
            continue
        links += _row_links(words, columns)
    return tuple(links)


def _row_links(words: Sequence[str], columns: Sequence[str]) -> list[Link]:
    first = _gpu(words[0])
    assert first is not None, "only the rows of GPUs are read"
    links: list[Link] = []
    for column, code in zip(columns, words[1:]):
        second = _gpu(column)
        if second is not None and second > first:
            links.append(Link(first=first, second=second, kind=kind_of(code), code=code))
    return links


def kind_of(code: str) -> LinkKind:
    """Sort nvidia-smi's words."""
    if NVLINK.fullmatch(code):
        return LinkKind.NVLINK
    if code in PCIE_CODES:
        return LinkKind.PCIE
    return LinkKind.SYSTEM if code in SYSTEM_CODES else LinkKind.UNKNOWN


def parse_rates(text: str) -> dict[int, float]:
    """Read `nvidia-smi nvlink --status`: a heading for each GPU, then a line for each of its links."""
    rates: dict[int, float] = {}
    gpu: int | None = None
    for line in text.splitlines():
        heading = re.match(r"GPU (\d+):", line.strip())
        if heading:
            gpu = int(heading[1])
        rate = RATE.search(line)
        if rate and gpu is not None:
            rates[gpu] = rates.get(gpu, 0.0) + float(rate[1])
    return rates


def slowest_kind(links: Sequence[Link], gpus: Sequence[int]) -> LinkKind:
    """The worst link among some GPUs: the one that a collective over them waits for."""
    found = [link.kind for link in links if link.first in gpus and link.second in gpus]
    order = list(LinkKind)
    return max(found, key=order.index, default=LinkKind.UNKNOWN)


def _gpu(word: str) -> int | None:
    found = re.fullmatch(r"GPU(\d+)", word)
    return int(found[1]) if found else None


def _ask(*arguments: str) -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        answer = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
