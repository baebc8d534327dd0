"""What nvidia-smi prints, and what is read out of it."""

import pytest

from slipstream.doctor.links import Link, LinkKind, kind_of, parse_matrix, parse_rates, slowest_kind

TWO_ON_NVLINK = """\
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\t0-47,96-143\t0\t\tN/A
GPU1\tNV18\t X \t0-47,96-143\t0\t\tN/A

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""

FOUR_ON_PCIE = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPIX\tNODE\tSYS\tPXB\t0-31\t0\t\tN/A
GPU1\tPIX\t X \tPHB\tSYS\tPXB\t0-31\t0\t\tN/A
GPU2\tNODE\tPHB\t X \tSYS\tNODE\t0-31\t0\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPXB\tPXB\tNODE\tSYS\t X

NIC Legend:

  NIC0: mlx5_0
"""

ONE = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-15\t0\t\tN/A\n"

NVLINK_STATUS = """\
GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-000000000000)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
GPU 1: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-000000000001)
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
"""


def test_two_gpus_on_nvlink_are_one_pair():
    assert parse_matrix(TWO_ON_NVLINK) == (Link(first=0, second=1, kind=LinkKind.NVLINK, code="NV18"),)


def test_every_pair_of_gpus_is_read_once_and_network_cards_are_not():
    found = {(link.first, link.second): (link.kind, link.code) for link in parse_matrix(FOUR_ON_PCIE)}
    assert found == {
        (0, 1): (LinkKind.PCIE, "PIX"),
        (0, 2): (LinkKind.SYSTEM, "NODE"),
        (0, 3): (LinkKind.SYSTEM, "SYS"),
        (1, 2): (LinkKind.PCIE, "PHB"),
        (1, 3): (LinkKind.SYSTEM, "SYS"),
        (2, 3): (LinkKind.SYSTEM, "SYS"),
    }


@pytest.mark.parametrize("text", [ONE, "", "Failed to initialize NVML: Driver/library version mismatch\n"])
def test_a_text_without_pairs_gives_none(text: str):
    assert parse_matrix(text) == ()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("NV4", LinkKind.NVLINK),
        ("PXB", LinkKind.PCIE),
        ("NODE", LinkKind.SYSTEM),
        ("NV#", LinkKind.UNKNOWN),
        ("?", LinkKind.UNKNOWN),
    ],
)
def test_words_are_sorted_by_what_lies_between(code: str, kind: LinkKind):
    assert kind_of(code) is kind


def test_a_group_waits_for_its_worst_link():
    links = parse_matrix(FOUR_ON_PCIE)
    assert slowest_kind(links, (0, 1)) is LinkKind.PCIE
    assert slowest_kind(links, (0, 1, 2)) is LinkKind.SYSTEM
    assert slowest_kind((), (0, 1)) is LinkKind.UNKNOWN


def test_the_rate_of_a_gpu_is_the_sum_of_its_active_links():
    assert parse_rates(NVLINK_STATUS) == {0: pytest.approx(53.124), 1: pytest.approx(26.562)}
    assert parse_rates("") == {}
