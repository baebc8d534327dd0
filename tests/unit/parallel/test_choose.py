"""Which way an all-reduce goes, and how a message fits the shared buffer; the kernels themselves need GPUs."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from slipstream.kernels.mail import Mail
from slipstream.parallel.choose import AllReducePath, MeasuredGroup, PathReport, PathRow, choose_group
from slipstream.parallel.distributed import RankGroup, rank_group
from slipstream.parallel.symmetric import SymmetricReducer, SymmetricUnavailable, open_symmetric

CPU = torch.device("cpu")
BUFFER_BYTES = 64


def mail() -> Mail:
    """A box of 16 elements of fp32."""
    nothing = torch.zeros(2)
    return Mail(boxes=nothing, state=nothing, rank=0, size=1, slot=16, dtype=torch.float32)


class Recorder(SymmetricReducer):
    """Doubles instead of adding, and remembers what it was given."""

    def __init__(self, group: RankGroup) -> None:
        buffer = torch.empty(BUFFER_BYTES, dtype=torch.uint8)
        super().__init__(buffer, mail(), process_group=group.process_group)
        self.calls: list[tuple[str, int]] = []

    def _one_shot(self, share: Tensor, total: Tensor, shared: Tensor) -> None:
        self._record("one-shot", share, total, shared)

    def _two_shot(self, share: Tensor, total: Tensor, shared: Tensor) -> None:
        self._record("two-shot", share, total, shared)

    def push(self, x: Tensor) -> Tensor:
        assert x.dtype == self.mail.dtype
        self.calls += [("push", share.nbytes) for share in x.split(self.mail.slot)]
        return x * 2

    def words_of_first(self, x: Tensor) -> Tensor:
        self.calls.append(("words", x.nbytes))
        return x

    def _record(self, name: str, share: Tensor, total: Tensor, shared: Tensor) -> None:
        assert len(share) == len(total) == len(shared)
        assert share.nbytes % 16 == share.data_ptr() % 16 == total.data_ptr() % 16 == 0
        self.calls.append((name, share.nbytes))
        total.copy_(share * 2)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    """A world of one process."""
    store = tmp_path_factory.mktemp("store") / "file"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield rank_group()
    dist.destroy_process_group()


@pytest.fixture
def recorder(group: RankGroup) -> Recorder:
    return Recorder(group)


def row(num_bytes: int, chosen: AllReducePath) -> PathRow:
    return PathRow(num_bytes=num_bytes, us={chosen: 1.0}, chosen=chosen)


ROWS = (row(32, AllReducePath.ONE_SHOT), row(128, AllReducePath.TWO_SHOT), row(1024, AllReducePath.NCCL))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (32,), (33,), (7, 11)], ids=str)
def test_any_shape_goes_in_whole_vectors_and_comes_back_as_it_was(
    recorder: Recorder, dtype: torch.dtype, shape: tuple[int, ...]
):
    x = torch.arange(torch.Size(shape).numel(), dtype=dtype).view(shape)
    assert torch.equal(recorder.one_shot(x), x * 2)
    assert torch.equal(recorder.two_shot(x.t() if x.dim() == 2 else x), (x.t() if x.dim() == 2 else x) * 2)
    assert all(num_bytes <= BUFFER_BYTES for _, num_bytes in recorder.calls)


def test_a_view_at_an_odd_address_is_moved_to_an_even_one(recorder: Recorder):
    x = torch.arange(17, dtype=torch.float32)[1:]
    assert torch.equal(recorder.one_shot(x), x * 2)


def test_a_message_larger_than_the_buffer_goes_in_pieces(recorder: Recorder):
    recorder.one_shot(torch.zeros(40))
    assert recorder.calls == [("one-shot", 64), ("one-shot", 64), ("one-shot", 32)]


@pytest.mark.parametrize(
    ("elements", "calls"),
    [(1, ["one-shot"]), (8, ["one-shot"]), (9, ["two-shot"]), (32, ["two-shot"] * 2), (33, []), (9999, [])],
)
def test_a_size_goes_the_way_of_the_next_larger_one_measured(
    group: RankGroup, recorder: Recorder, elements: int, calls: list[str]
):
    measured, x = MeasuredGroup(group, recorder, ROWS), torch.ones(elements)
    total = measured.all_reduce(x, "test")
    assert [name for name, _ in recorder.calls] == calls
    assert torch.equal(total, x * (2 if calls else 1))


PUSHED = (row(64, AllReducePath.PUSH),)


@pytest.mark.parametrize(
    ("x", "calls", "fits"),
    [
        (torch.ones(16), ["push"], True),
        (torch.ones(17), ["push", "push"], False),  # more than the box holds at a time
        (torch.ones(4, dtype=torch.bfloat16), ["one-shot"], False),  # the box holds another dtype
    ],
    ids=str,
)
def test_what_fits_no_mailbox_is_not_for_kernels_to_sum(
    group: RankGroup, recorder: Recorder, x: Tensor, calls: list[str], fits: bool
):
    measured = MeasuredGroup(group, recorder, PUSHED)
    assert torch.equal(measured.all_reduce(x, "test"), x * 2)
    assert [name for name, _ in recorder.calls] == calls
    with measured.mailing(x, "all_reduce", "test") as mail:
        assert mail is (recorder.mail if fits else None)


@pytest.mark.parametrize(
    ("x", "calls"),
    [
        (torch.ones(8, dtype=torch.int64), [("words", 64)]),
        (torch.ones(9, dtype=torch.int64), []),  # more than the box holds
        (torch.ones(8), []),  # no words of 64 bits
    ],
    ids=str,
)
def test_few_integers_are_pushed_where_small_messages_are(
    group: RankGroup, recorder: Recorder, x: Tensor, calls: list[tuple[str, int]]
):
    assert torch.equal(MeasuredGroup(group, recorder, PUSHED).broadcast(x, "test"), x)
    assert recorder.calls == calls
    recorder.calls.clear()
    MeasuredGroup(group, recorder, ROWS).broadcast(x, "test")
    assert recorder.calls == []


def test_a_size_that_is_not_pushed_is_not_for_kernels_to_sum(group: RankGroup, recorder: Recorder):
    with MeasuredGroup(group, recorder, ROWS).mailing(torch.ones(4), "all_reduce", "test") as mail:
        assert mail is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.bool], ids=str)
def test_what_the_kernels_cannot_add_goes_over_the_backend(group: RankGroup, recorder: Recorder, dtype: torch.dtype):
    x = torch.ones(4).to(dtype)
    assert torch.equal(MeasuredGroup(group, recorder, ROWS).all_reduce(x, "test"), x)
    assert recorder.calls == []


def test_gathers_and_broadcasts_are_the_backends(group: RankGroup, recorder: Recorder):
    measured = MeasuredGroup(group, recorder, ROWS)
    assert measured.all_gather(torch.ones(2, 3), "test").shape == (1, 2, 3)
    assert torch.equal(measured.broadcast(torch.ones(2), "test"), torch.ones(2))
    assert (measured.rank, measured.size) == (0, 1)


def test_over_gloo_there_is_one_way_and_the_report_says_so(group: RankGroup):
    found, report = choose_group(group.process_group, CPU, sizes=[8192])
    assert isinstance(found, RankGroup)
    assert report == PathReport(size=1, backend="gloo", rows=(), note="gloo gathers and adds in rank order")


def test_memory_is_not_shared_between_cpus(group: RankGroup):
    with pytest.raises(SymmetricUnavailable, match="for GPUs"):
        open_symmetric(group.process_group, CPU)


def test_memory_is_not_shared_for_what_its_kernels_cannot_add(group: RankGroup):
    with pytest.raises(SymmetricUnavailable, match="not float16"):
        open_symmetric(group.process_group, CPU, dtype=torch.float16)


def test_a_report_becomes_plain_values():
    report = PathReport(size=2, backend="nccl", rows=ROWS[:1], note="")
    assert report.as_row()["rows"] == [{"bytes": 32, "us": {"one-shot": 1.0}, "chosen": "one-shot"}]
