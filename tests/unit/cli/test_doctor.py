"""`slipstream doctor nccl` as it is typed, with measurements that cost nothing."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipstream.cli import doctor as verb
from slipstream.doctor.latency import Health, Latency, Setting
from slipstream.doctor.links import parse_matrix
from tests.unit.cli.world import Cli
from tests.unit.doctor.test_links import TWO_ON_NVLINK

SHARED_US = {"one-shot": 6.0, "two-shot": 8.0, "push": 4.0}
US = {"NCCL": 12.0, "NCCL LL": 11.0, **SHARED_US, "gloo reduced": 900.0, "gloo gathered": 400.0}


def measured(setting: Setting, *, sizes: Sequence[int], **_) -> Latency:
    if setting.name not in US:
        return Latency(setting=setting, health=Health.HUNG, us=(), reason="no end after 120 s")
    return Latency(setting=setting, health=Health.OK, us=(US[setting.name],) * len(sizes), reason="")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    """Pretend to have two GPUs on NVLink."""
    monkeypatch.setattr(verb, "probe", measured)
    monkeypatch.setattr(verb.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("slipstream.doctor.nccl.read_links", lambda: parse_matrix(TWO_ON_NVLINK))
    monkeypatch.setattr("slipstream.doctor.nccl.read_rates", lambda: {0: 478.1, 1: 478.1})


def test_the_report_names_links_latencies_collectives_and_what_to_set(cli: Cli, gpus: None, tmp_path: Path):
    outcome = cli("doctor", "nccl", "--shape", "llama-3.1-8b", "--out", str(tmp_path / "report.json"))
    assert outcome.code == 0
    for words in (
        "GPU0 - GPU1  NVLink (NV18)",
        "NCCL LL128: hung: no end",
        "best token",
        "NCCL_PROTO=LL: 65 us a cycle",
    ):
        assert words in outcome.out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["sizes"][:3] == [8192, 16384, 32768]
    assert [each["health"] for each in report["latencies"]] == ["ok", "ok", "hung", "hung", "ok", "ok", "ok"]
    assert report["links"] == [{"first": 0, "second": 1, "kind": "NVLink", "code": "NV18"}]


def test_json_is_printed_as_it_is_written(cli: Cli, gpus: None, tmp_path: Path):
    file = tmp_path / "new" / "report.json"
    outcome = cli("doctor", "nccl", "--json", "--out", str(file))
    assert outcome.code == 0
    assert outcome.objects == [json.loads(file.read_text())]


@pytest.mark.parametrize("verb", [("doctor", "nccl"), ("bench", "placement"), ("doctor",)])
def test_a_file_after_json_is_sent_to_out(cli: Cli, verb: tuple[str, ...]):
    outcome = cli(*verb, "--json", "report.json")
    assert (outcome.code, outcome.out) == (2, "")
    (error,) = outcome.errors
    assert error == "error: --json prints and takes no file; write one with --out report.json, or with > report.json"


def test_a_cpu_can_try_it_and_is_given_no_advice(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verb, "probe", measured)
    outcome = cli("doctor", "nccl", "--device", "cpu", "--shape", "kimi-k2.5")
    assert outcome.code == 0
    assert "gloo gathered" in outcome.out
    assert "nothing to set" in outcome.out


@pytest.mark.parametrize(
    ("num_gpus", "arguments", "words"),
    [
        (0, [], "there is no CUDA device here"),
        (1, [], "one GPU has nothing to be connected with"),
        (2, ["--tp", "1"], "one rank has nothing"),
        (2, ["--tp", "4"], "--tp 4 needs 4 GPUs"),
        (2, ["--draft-tp", "3"], "cut over 2; use replicated or 1, 2"),
        (2, ["--draft-tp", "auto"], "--draft-tp auto is not possible"),
        (2, ["--device", "tpu"], "cuda or cpu"),
        (2, ["--shape", "gpt-2"], "no shape is called gpt-2"),
        (2, ["--model", "x", "--shape", "qwen3-8b"], "contradicts"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, num_gpus: int, arguments: list[str], words: str
):
    monkeypatch.setattr(verb.torch.cuda, "device_count", lambda: num_gpus)
    outcome = cli("doctor", "nccl", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("draft_tp", "operations"),
    [("replicated", []), ("1", ["broadcast"]), ("2", ["all_reduce", "all_reduce", "all_reduce", "all_gather"])],
)
def test_a_draft_is_counted_where_it_is_said_to_be(cli: Cli, gpus: None, draft_tp: str, operations: list[str]):
    lines = cli("doctor", "nccl", "--draft-tp", draft_tp).out.splitlines()
    assert [line.split("draft")[1].split()[0] for line in lines if " draft " in line] == operations


def test_a_default_that_gives_no_numbers_gives_no_advice(cli: Cli, gpus: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(US, "NCCL")
    assert "no advice" in cli("doctor", "nccl").out
