"""Machines by name, data sheets of one's own, and all-reduce latencies beside measured ones."""

from pathlib import Path

import pytest

from slipstream.plan.hardware import ALL_REDUCE_STATES, device_tables, find_device, link_tables, machine, resized

MEASURED_US = [  # link, GPUs, bytes, state, microseconds as measured inside captured graphs
    ("2x-h100", 2, 32_768, "one-shot", 4.5),
    ("4x-h100", 4, 32_768, "one-shot", 4.8),
    ("2x-h200", 2, 16_384, "tuned", 12.2),
    ("8x-h100", 8, 32_768, "one-shot", 7.8),
    ("8x-h100", 8, 16_384, "tuned", 20.7),
    ("4x-rtx-pro-6000-pcie", 4, 8_192, "tuned", 13.9),
    ("8x-rtx-pro-6000-pcie", 8, 14_336, "tuned", 24.5),
    ("8x-rtx-pro-6000-pcie", 8, 14_336, "untuned", 50.0),
]


@pytest.mark.parametrize(
    ("name", "device", "count", "link"),
    [
        ("8x-rtx-pro-6000-pcie", "rtx-pro-6000", 8, "pcie5"),
        ("1x-h200", "h200", 1, "nvlink4"),
        ("8x-b200-nvlink", "b200", 8, "nvlink5"),
        ("4x-mi355x", "mi355x", 4, "xgmi4"),
        ("2x-h100-pcie", "h100-pcie", 2, "pcie5"),
        ("gb10", "gb10", 1, "ethernet200"),
        ("2x RTX 4090", "rtx-4090", 2, "pcie4"),
    ],
)
def test_a_name_gives_count_device_and_link(name, device, count, link):
    found = machine(name)
    assert (found.device.name, found.count, found.link.name) == (device, count, link)


@pytest.mark.parametrize(
    "name",
    ["h100", "h200", "b200", "mi300x", "mi355x", "a100", "l40s", "rtx-4090", "rtx-5090", "rtx-pro-6000", "gb10"],
)
def test_the_devices_of_the_issue_are_there(name):
    assert machine(name).device.bytes_per_s > 2e11


@pytest.mark.parametrize(("name", "near"), [("8x-h10", "h100"), ("1x-rtx-4900", "rtx-4090"), ("2x-h100-foo", "h100")])
def test_an_unknown_name_lists_the_nearest(name, near):
    with pytest.raises(ValueError, match=near):
        machine(name)


@pytest.mark.parametrize(("name", "size", "num_bytes", "state", "measured_us"), MEASURED_US)
def test_all_reduce_latencies_lie_within_a_quarter_of_measured_ones(name, size, num_bytes, state, measured_us):
    found = machine(name, state=state).all_reduce_us(num_bytes, size)
    assert found == pytest.approx(measured_us, rel=0.25)


def test_one_device_reduces_nothing():
    assert machine("1x-h100").all_reduce_us(1 << 20, 1) == 0


def test_one_shot_falls_back_to_a_ring_for_large_messages():
    link = machine("8x-rtx-pro-6000-pcie").link
    assert link.all_reduce_us(8 << 20, 8, state="one-shot") == link.all_reduce_us(8 << 20, 8, state="tuned")
    assert link.all_reduce_us(1024, 8, state="one-shot") < link.all_reduce_us(1024, 8, state="tuned")


def test_a_device_and_a_link_of_ones_own_are_read_from_toml(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[toaster]\nbandwidth_gb_s = 100\nmemory_gb = 8\ntflops_16 = 10\nlink = "wire"\n'
        '[links.wire]\ndefault = "tuned"\n'
        + "".join(f"{state} = {{ base_us = 1.0, hop_us = 2.0, gb_s = 1 }}\n" for state in ALL_REDUCE_STATES)
    )
    found = machine("2x-toaster", file=file)
    assert found.device.bytes_per_s == 100e9
    assert found.all_reduce_us(0, 2) == pytest.approx(1.0 + 2 * 2.0)


def test_a_file_that_lacks_a_rate_is_refused_by_name(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text("[toaster]\nbandwidth_gb_s = 100\n")
    with pytest.raises(ValueError, match=r"\[toaster\] lacks memory_gb, tflops_16"):
        machine("toaster", file=file)


def test_every_device_names_a_link_that_exists_and_every_link_has_all_states():
    links = link_tables(None)
    assert {table["link"] for table in device_tables(None).values()} <= set(links)
    assert all(
        set(ALL_REDUCE_STATES) <= set(table) and table["default"] in ALL_REDUCE_STATES for table in links.values()
    )


def test_free_text_finds_the_longest_device_that_it_names():
    assert find_device("RTX PRO 6000 Blackwell Max-Q 96GB") == "rtx-pro-6000"
    assert find_device("A100-40GB") == "a100-40gb"
    assert find_device("no such thing") is None


def test_more_devices_of_the_kind_keep_the_link():
    assert resized(machine("4x-h100"), 8).name == "8x-h100-nvlink4"
