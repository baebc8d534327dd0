"""All-reduces over memory that all ranks of a group read and write directly (PyTorch's symmetric memory).

One-shot: each rank reads everybody's share and adds. Two-shot: each rank adds a part and the others read the sums. Both
add in rank order, rounding after each addition, so they and `RankGroup` with SumOrder.RANKS give the same bits.

Why one buffer is enough: both kernels begin and end with a barrier between the blocks of one number on all ranks, and
the block of a number touches the same elements everywhere. The first barrier says that the shares are written, the last
that nobody will read them again; a kernel is over on a rank only when all its blocks passed that. So whatever this
stream runs next may overwrite the buffer, and the shape of the next launch does not matter. The barriers pair launches
by order alone: one group's all-reduces must stay on one stream, or on streams that wait for each other, as graphs that
are replayed one after another do. Each group has its own allocation and with it its own flags, so two groups of one
process do not disturb each other. Nothing here uses multicast.

Push: small messages go straight into the other ranks' mailboxes (`kernels/push.py`), which lie behind the buffer.
"""

import ctypes
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _symmetric_memory as symm_mem

from slipstream.kernels.mail import SLOTS, WORDS, Mail, empty_word

DTYPES = (torch.bfloat16, torch.float32)  # what the kernels add
BUFFER_BYTES = 8 << 20
VECTOR_BYTES = 16  # the widest access of the kernels
MAIL_BYTES = 1 << 20  # of a pushed message at most
TWO_SHOT_OUT_SIZES = (2, 4, 8)  # for which two-shot can write elsewhere than into the buffer
NATIVE_ATOMICS = 3  # CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED

Result = TypeVar("Result")
_MARK = "_slipstream_met"  # names of groups that have met


class SymmetricUnavailable(RuntimeError):
    """Why a group cannot share memory; raised on all its ranks or on none."""


class SymmetricReducer:
    """A group's shared buffer and the all-reduces over it; messages larger than the buffer go in pieces."""

    def __init__(self, buffer: Tensor, mail: Mail, *, process_group: dist.ProcessGroup) -> None:
        self._buffer, self.mail = buffer, mail
        self._group_name = process_group.group_name
        self._out_of_place = dist.get_world_size(process_group) in TWO_SHOT_OUT_SIZES

    def one_shot(self, x: Tensor) -> Tensor:
        """Sum x: every rank reads (size - 1) * x."""
        return self._by_piece(x, self._one_shot)

    def two_shot(self, x: Tensor) -> Tensor:
        """Sum x: every rank reads (size - 1) / size * x, twice."""
        return self._by_piece(x, self._two_shot)

    def push(self, x: Tensor) -> Tensor:
        """Sum x of the mailboxes' dtype: every rank writes (size - 1) * x, and none waits for a barrier."""
        from slipstream.kernels.push import push_sum  # noqa: PLC0415 - needs triton

        share_N = x.contiguous().view(-1)
        total_N = torch.empty_like(share_N)
        for share, total in zip(share_N.split(self.mail.slot), total_N.split(self.mail.slot), strict=True):
            push_sum(share, self.mail, out=total)
        return total_N.view(x.shape)

    def words_of_first(self, x: Tensor) -> Tensor:
        """Rank 0's x, int64 words of which `mail` takes so many."""
        from slipstream.kernels.exchange import words_of_first  # noqa: PLC0415 - needs triton

        return words_of_first(x.contiguous(), self.mail)

    def _by_piece(self, x: Tensor, reduce: Callable[[Tensor, Tensor, Tensor], None]) -> Tensor:
        share_N = _whole_vectors(x)
        total_N, shared = torch.empty_like(share_N), self._buffer.view(x.dtype)
        for share, total in zip(share_N.split(len(shared)), total_N.split(len(shared))):
            reduce(share, total, shared[: len(share)])
        return total_N[: x.numel()].view(x.shape)

    def _one_shot(self, share: Tensor, total: Tensor, shared: Tensor) -> None:
        torch.ops.symm_mem.one_shot_all_reduce_copy_out(shared, share, "sum", self._group_name, total)

    def _two_shot(self, share: Tensor, total: Tensor, shared: Tensor) -> None:
        shared.copy_(share)
        if self._out_of_place:
            torch.ops.symm_mem.two_shot_all_reduce_out(shared, "sum", self._group_name, total)
            return
        torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", self._group_name)
        total.copy_(shared)


def _whole_vectors(x: Tensor) -> Tensor:
    """x in one row of aligned vectors; copied only if it is not one already."""
    row = x.contiguous().view(-1)
    missing = -row.nbytes % VECTOR_BYTES // row.element_size()
    if not missing and row.data_ptr() % VECTOR_BYTES == 0:
        return row
    padded = row.new_zeros(len(row) + missing)
    padded[: len(row)] = row
    return padded


def open_symmetric(
    process_group: dist.ProcessGroup,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.bfloat16,
    buffer_bytes: int = BUFFER_BYTES,
) -> SymmetricReducer:
    """Share a buffer between the ranks of a group; they call this together, each with its current device.

    dtype: of pushed messages.

    Raises:
        SymmetricUnavailable: some rank cannot; raised on all of them, with its reason.
    """
    if dtype not in DTYPES:
        raise SymmetricUnavailable(f"its kernels add bfloat16 and float32, not {str(dtype).removeprefix('torch.')}")
    if device.type != "cuda":
        raise SymmetricUnavailable("symmetric memory is for GPUs")
    # NCCL connects at its first collective, and a rendezvous before that was seen to hang.
    dist.all_reduce(torch.ones(1, device=device), group=process_group)
    places = _from_all((socket.gethostname(), device.index), process_group)
    _agree(_obstacle(device, places) or _met_before(process_group.group_name), process_group)

    size, buffer_bytes = dist.get_world_size(process_group), -(-buffer_bytes // VECTOR_BYTES) * VECTOR_BYTES
    buffer, reason = _attempt(lambda: _allocate(buffer_bytes + SLOTS * size * MAIL_BYTES, device))
    _agree(reason, process_group)
    assert buffer is not None, "all ranks agreed that they have one"
    _empty(buffer[buffer_bytes:], dtype)
    setattr(symm_mem, _MARK, {*getattr(symm_mem, _MARK, ()), process_group.group_name})
    handle, reason = _attempt(lambda: symm_mem.rendezvous(buffer, process_group.group_name))
    _agree(reason, process_group)  # the mailboxes of all ranks are empty from here on
    assert handle is not None, "all ranks agreed that they have met"

    boxes = [address + buffer_bytes for address in handle.buffer_ptrs]
    mail = _mail(boxes, dist.get_rank(process_group), dtype, device)
    reducer = SymmetricReducer(buffer[:buffer_bytes], mail, process_group=process_group)
    _agree(_wrong_sums(reducer, process_group, device), process_group)
    return reducer


def _allocate(num_bytes: int, device: torch.device) -> Tensor:
    """An allocation of its own. symm_mem.empty may cut it from a pool whose tensors share their barriers' flags."""
    with torch.inference_mode(mode=False):  # the buffer is written inside and outside of that mode
        return symm_mem._SymmetricMemory.empty_strided_p2p((num_bytes,), (1,), torch.uint8, device)


def _empty(boxes: Tensor, dtype: torch.dtype) -> None:
    """Make mailboxes read as empty, before anybody can write to them."""
    with torch.inference_mode(mode=False):
        boxes.view(WORDS[dtype]).fill_(empty_word(dtype))
    torch.cuda.synchronize(boxes.device)


def _mail(boxes: Sequence[int], rank: int, dtype: torch.dtype, device: torch.device) -> Mail:
    with torch.inference_mode(mode=False):
        return Mail(
            boxes=torch.tensor(boxes, dtype=torch.int64, device=device),
            state=torch.zeros(2, dtype=torch.int32, device=device),
            rank=rank,
            size=len(boxes),
            slot=MAIL_BYTES // dtype.itemsize,
            dtype=dtype,
        )


def _attempt(action: Callable[[], Result]) -> tuple[Result | None, str]:
    """What an action gives, or why it gives nothing."""
    try:
        return action(), ""
    except RuntimeError as error:
        return None, str(error).partition("\n")[0]


def _from_all(value: object, process_group: dist.ProcessGroup) -> list:
    values: list[object] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(values, value, group=process_group)
    return values


def _agree(reason: str, process_group: dist.ProcessGroup) -> None:
    """Go on together or stop together: a rank that went on alone would wait for ever."""
    for rank, found in enumerate(_from_all(reason, process_group)):
        if found:
            raise SymmetricUnavailable(f"rank {rank}: {found}")


def _obstacle(device: torch.device, places: Sequence[tuple[str, int]]) -> str:
    """What on this rank forbids sharing memory with the others; empty if nothing does."""
    if not hasattr(torch.ops.symm_mem, "one_shot_all_reduce_copy_out"):
        return f"torch {torch.__version__} has no one-shot all-reduce"
    if len({host for host, _ in places}) > 1:
        return "the ranks are on several hosts"
    if len(set(places)) < len(places):
        return "two ranks name the same device; let every process see all GPUs of the group"
    for _, peer in places:
        if peer == device.index:
            continue
        if peer >= torch.cuda.device_count():
            return f"GPU {peer} is not visible here; let every process see all GPUs of the group"
        if not torch.cuda.can_device_access_peer(device.index, peer):
            return f"GPU {device.index} cannot access the memory of GPU {peer}"
        if not _has_native_atomics(device.index, peer):
            return f"no atomic operations between GPU {device.index} and GPU {peer}; the barriers would wait for ever"
    return ""


def _met_before(group_name: str) -> str:
    """torch keeps a group's first store for the life of a process, and names groups anew from 0 after each teardown.

    A second rendezvous under a name would wait for ever at the store of the first, which is gone. The mark lies where
    torch's memory of it lies: in the module.
    """
    if group_name in getattr(symm_mem, _MARK, ()):
        return "this process has shared memory in an earlier group; a fresh process can do so again"
    return ""


def _has_native_atomics(device: int, peer: int) -> bool:
    """Whether the link carries the compare-and-swap that the barriers are made of; PCIe often does not."""
    driver, answer = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    handles = [ctypes.c_int(0), ctypes.c_int(0)]
    for handle, ordinal in zip(handles, (device, peer)):
        driver.cuDeviceGet(ctypes.byref(handle), ordinal)
    failed = driver.cuDeviceGetP2PAttribute(ctypes.byref(answer), NATIVE_ATOMICS, *handles)
    return not failed and answer.value == 1


def _wrong_sums(reducer: SymmetricReducer, process_group: dist.ProcessGroup, device: torch.device) -> str:
    """Try every all-reduce on numbers whose sum is known."""
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    for path in (reducer.one_shot, reducer.two_shot, reducer.push):
        for dtype in DTYPES if path != reducer.push else (reducer.mail.dtype,):
            total = path(torch.full((4099,), rank + 1, dtype=dtype, device=device))
            if not bool((total == size * (size + 1) // 2).all()):  # sync: once, before anything is served
                return f"{path.__name__} gave a wrong sum"
    return ""
