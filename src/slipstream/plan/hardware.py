"""Machines as a planner sees them: so many devices of one kind on one kind of link, from TOML tables of data sheets.

A name is `8x-rtx-pro-6000-pcie`: count, device, optionally the link. A file of the user's own holds the same keys.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

ALL_REDUCE_STATES = ("tuned", "untuned", "one-shot")
RING, READS = 2, 1  # hops a peer costs: a ring passes it twice, one-shot reads it once
GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU by its data sheet; FLOP/s are dense."""

    name: str
    bytes_per_s: float
    memory_bytes: float
    flops_16: float
    flops_8: float  # the 16-bit rate where there is no faster one
    flops_4: float  # the 8-bit rate where there is no faster one

    def flops(self, bits: float) -> float:
        """Dense FLOP/s for weights of so many bits; 4-bit weights beside 16-bit activations run at the 16-bit rate."""
        return self.flops_8 if 6 <= bits <= 8 else self.flops_16


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Latency of an all-reduce: base + hops x hop + what crosses the link."""

    base_us: float
    hop_us: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the devices, and how long an all-reduce takes over it in each state."""

    name: str
    default: str
    curves: Mapping[str, Curve]

    def all_reduce_us(self, num_bytes: float, size: int, *, state: str) -> float:
        """Microseconds over `size` devices; a state that is "best" takes the fastest curve of those that are tuned.

        One-shot reads (P - 1) messages; a ring passes 2 (P - 1) / P of one in 2 (P - 1) hops.
        """
        if size == 1:
            return 0.0
        if state == "one-shot":  # an engine falls back to a ring where that is faster, for large messages
            return min(self._us(num_bytes, size, "one-shot"), self._us(num_bytes, size, "tuned"))
        return self._us(num_bytes, size, state)

    def _us(self, num_bytes: float, size: int, state: str) -> float:
        curve, peers = self.curves[state], size - 1
        hops = READS * peers if state == "one-shot" else RING * peers
        moved = num_bytes * (peers if state == "one-shot" else 2 * peers / size)
        return curve.base_us + curve.hop_us * hops + moved / curve.bytes_per_s * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`count` devices that hold the target together."""

    name: str
    device: Device
    count: int
    link: Link
    state: str  # of its all-reduce
    assumed: bool = False  # the device was not stated; a common one stands for it

    def all_reduce_us(self, num_bytes: float, size: int) -> float:
        """Microseconds of one all-reduce over the first `size` devices."""
        return self.link.all_reduce_us(num_bytes, size, state=self.state)


def machine(name: str, *, file: Path | None = None, state: str | None = None) -> Machine:
    """Read `8x-rtx-pro-6000-pcie` (or a device of the user's own file).

    Raises:
        ValueError: an unknown device, link or state; the nearest names are listed.
    """
    found = re.fullmatch(r"(?:(\d+)\s*x[\s-]*)?(.+)", name.strip(), re.IGNORECASE)
    count, text = (int(found[1] or 1), plain(found[2])) if found else (1, plain(name))
    if count < 1:
        raise ValueError(f"--hardware {name}: there is at least one device")
    tables = device_tables(file)
    key = find_device(text, tables)
    if key is None or not _only_link_left(text, key, tables):
        near = difflib.get_close_matches(text, _known(tables), n=4, cutoff=0.4) or sorted(tables)
        raise ValueError(
            f"no device is called {name}; the nearest are {', '.join(dict.fromkeys(near))}. A name is COUNTx-DEVICE or"
            f" COUNTx-DEVICE-LINK, as 8x-h100-nvlink; other devices come from --hardware-file"
        )
    return build(key, count, link=text, state=state, file=file)


def build(key: str, count: int, *, link: str = "", state: str | None = None, file: Path | None = None) -> Machine:
    """A machine of so many devices; `link` may hold the name of a link among other words.

    Raises:
        ValueError: an unknown state.
    """
    table = device_tables(file)[key]
    joined = find_link(link, table["link"], file)
    if state is not None and state not in ALL_REDUCE_STATES:
        raise ValueError(f"an all-reduce is {', '.join(ALL_REDUCE_STATES)}, not {state}")
    return Machine(
        name=f"{count}x-{key}" + (f"-{joined.name}" if count > 1 else ""),
        device=_device(key, table),
        count=count,
        link=joined,
        state=state or joined.default,
    )


def resized(found: Machine, count: int) -> Machine:
    """The same kind of machine with more or fewer devices."""
    key = found.device.name
    return replace(found, count=count, name=f"{count}x-{key}" + (f"-{found.link.name}" if count > 1 else ""))


def find_device(text: str, tables: Mapping[str, Any] | None = None) -> str | None:
    """The device whose longest name stands in a text."""
    tables = device_tables(None) if tables is None else tables
    padded = f"-{plain(text)}-"
    best: tuple[int, str] | None = None
    for key, table in tables.items():
        for name in (key, *map(plain, table.get("names", ()))):
            if f"-{name}-" in padded and (best is None or len(name) > best[0]):
                best = (len(name), key)
    return None if best is None else best[1]


def find_link(text: str, usual: str, file: Path | None = None) -> Link:
    """The link that a text names, of the device's own generation where it has one of that kind."""
    tables = link_tables(file)
    words = plain(text)
    named = [key for key in tables if f"-{key}" in f"-{words}"]
    kinds = [key for key, table in tables.items() if any(f"-{plain(n)}" in f"-{words}" for n in table["names"])]
    key = named[-1] if named else usual if usual in kinds or not kinds else kinds[0]
    table = tables[key]
    curves = {
        state: Curve(base_us=each["base_us"], hop_us=each["hop_us"], bytes_per_s=each["gb_s"] * GIGA)
        for state in ALL_REDUCE_STATES
        for each in (table[state],)
    }
    return Link(name=key, default=table["default"], curves=curves)


def device_tables(file: Path | None) -> Mapping[str, Any]:
    """The shipped devices and those of the user's file.

    Raises:
        ValueError: the file is missing, is no TOML or lacks a key.
    """
    own = _own(file)
    needed = ("bandwidth_gb_s", "memory_gb", "tflops_16")
    for key, table in own.items():
        if key == "links":
            continue
        missing = [each for each in needed if not isinstance(table, dict) or each not in table]
        if missing:
            raise ValueError(f"{file}: [{key}] lacks {', '.join(missing)}")
        if table.setdefault("link", "pcie5") not in link_tables(file):
            raise ValueError(f"{file}: [{key}] names link {table['link']}; choose {', '.join(link_tables(file))}")
    return {**shipped("hardware"), **{plain(key): table for key, table in own.items() if key != "links"}}


def link_tables(file: Path | None) -> Mapping[str, Any]:
    """The shipped links and those of [links.NAME] in the user's file."""
    own = _own(file).get("links", {})
    for key, table in own.items():
        missing = [state for state in (*ALL_REDUCE_STATES, "default") if state not in table]
        if missing:
            raise ValueError(f"{file}: [links.{key}] lacks {', '.join(missing)}")
        table.setdefault("names", [key])
    return {**shipped("links"), **own}


def _own(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no file {file}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from None


@cache
def shipped(name: str) -> Mapping[str, Any]:
    """A table of the package's own data."""
    return tomllib.loads((files("slipstream.plan") / "data" / f"{name}.toml").read_text(encoding="utf-8"))


def plain(text: str) -> str:
    """Lower case, words joined by dashes; a point inside a number stays."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def _device(key: str, table: Mapping[str, Any]) -> Device:
    flops_8 = table.get("tflops_8", table["tflops_16"])
    return Device(
        name=key,
        bytes_per_s=table["bandwidth_gb_s"] * GIGA,
        memory_bytes=table["memory_gb"] * GIGA,
        flops_16=table["tflops_16"] * 1e12,
        flops_8=flops_8 * 1e12,
        flops_4=table.get("tflops_4", flops_8) * 1e12,
    )


def _known(tables: Mapping[str, Any]) -> list[str]:
    return [name for key, table in tables.items() for name in (key, *map(plain, table.get("names", ())))]


def _only_link_left(text: str, key: str, tables: Mapping[str, Any]) -> bool:
    """Whether a name is a device's and perhaps a link's, and nothing else."""
    names = sorted({key, *map(plain, tables[key].get("names", ()))}, key=len, reverse=True)
    rest = next((text[len(name) :].strip("-") for name in names if f"{text}-".startswith(f"{name}-")), None)
    links = [n for link, table in link_tables(None).items() for n in (link, *map(plain, table["names"]))]
    return rest is not None and (not rest or rest in links)
