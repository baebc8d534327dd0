"""Pushed sums and words with the other ranks' mail already there: on CUDA, elsewhere under Triton's interpreter."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from slipstream.kernels.exchange import best_of_ranks, words_of_first
from slipstream.kernels.lookup import shard_rows
from slipstream.kernels.mail import SLOTS, WARP, WORDS, Mail, empty_long, empty_word, single_warps
from slipstream.kernels.norms import add_squares
from slipstream.kernels.push import push_add_squares, push_sum
from slipstream.verify.shards import LOW_BITS, sortable

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE, SLOT = 3, 64


class Post:
    """The mailboxes of three ranks in one memory, as rank 1 sees them."""

    def __init__(self, rank: int = 1) -> None:
        words = torch.full((SIZE, SLOTS, SIZE, SLOT), empty_word(torch.float32), dtype=WORDS[torch.float32])
        self.boxes = words.to(DEVICE).view(torch.float32)
        addresses = torch.tensor([box.data_ptr() for box in self.boxes], device=DEVICE)
        state = torch.zeros(2, dtype=torch.int32, device=DEVICE)
        self.mail = Mail(boxes=addresses, state=state, rank=rank, size=SIZE, slot=SLOT, dtype=torch.float32)

    def deliver(self, shares: list[Tensor], turn: int) -> None:
        """What the others would push of message number `turn`."""
        for rank, share in enumerate(shares):
            if rank != self.mail.rank:
                self.boxes[self.mail.rank, turn % SLOTS, rank, : share.numel()] = share.flatten()

    def deliver_words(self, words: list[Tensor], turn: int) -> None:
        """The same of 64-bit words."""
        for rank, each in enumerate(words):
            if rank != self.mail.rank:
                self.boxes.view(torch.int64)[self.mail.rank, turn % SLOTS, rank, : each.numel()] = each.flatten()

    def found(self, reader: int, turn: int, count: int) -> Tensor:
        """What rank 1 has pushed to another."""
        return self.boxes[reader, turn % SLOTS, self.mail.rank, :count]

    def is_empty(self, rank: int) -> bool:
        return bool((self.boxes[rank].view(torch.int32) == empty_word(torch.float32)).all())


def shares(*shape: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(DEVICE) for _ in range(SIZE)]


def test_messages_are_added_in_rank_order_pushed_to_all_others_and_their_boxes_emptied() -> None:
    post = Post()
    for turn, count in enumerate((64, 1, 33, 64, 17)):
        sent = shares(count, seed=turn)
        post.deliver(sent, turn)
        assert torch.equal(push_sum(sent[1], post.mail), sent[0] + sent[1] + sent[2])
        assert torch.equal(post.found(0, turn, count), sent[1])
        assert torch.equal(post.found(2, turn, count), sent[1])
        assert post.is_empty(1), "this rank's box is ready for the message after the next"
        assert post.mail.state.tolist() == [turn + 1, 0]
        for reader in (0, 2):
            post.boxes[reader].view(torch.int32).fill_(empty_word(torch.float32))  # they have read it


@pytest.mark.parametrize("before", [2**31 - 1, -1, -(2**31)])
def test_the_count_of_messages_may_wrap(before: int) -> None:
    post = Post()
    post.mail.state[0] = before
    for turn in (before, before + 1):
        sent, words = shares(8), [torch.arange(4, device=DEVICE) + rank for rank in range(SIZE)]
        post.deliver(sent, turn)
        assert torch.equal(push_sum(sent[1], post.mail), sent[0] + sent[1] + sent[2])
        assert torch.equal(post.found(2, turn, 8), sent[1])
        post.boxes[::2].view(torch.int32).fill_(empty_word(torch.float32))
        post.deliver_words(words, turn + 1)
        assert torch.equal(words_of_first(words[1], post.mail), words[0])
        post.boxes[::2].view(torch.int32).fill_(empty_word(torch.float32))
        post.mail.state[0] -= 1


@pytest.mark.parametrize(("width", "warps"), [(1, 1), (32, 1), (33, 2), (64, 2), (65, 4), (576, 4), (4096, 4)])
def test_no_two_threads_poll_the_same_element(width: int, warps: int) -> None:
    assert single_warps(width) == warps
    assert warps * WARP <= max(WARP, 1 << (width - 1).bit_length())


def test_zeros_of_either_sign_arrive() -> None:
    post = Post()
    sent = [torch.tensor([0.0, -0.0, 1.0], device=DEVICE) for _ in range(SIZE)]
    post.deliver([share + 0.0 for share in sent], 0)  # which makes -0.0 positive, as the kernel does
    assert torch.equal(push_sum(sent[1], post.mail), torch.tensor([0.0, 0.0, 3.0], device=DEVICE))
    assert not post.found(0, 0, 3).signbit().any(), "a negative zero would never be seen to arrive"


def test_a_sum_with_the_residual_gives_what_the_two_kernels_give_one_after_the_other() -> None:
    post, (num_rows, width) = Post(), (3, 20)
    sent, x, weight = shares(num_rows, width), torch.randn(num_rows, width).to(DEVICE), torch.randn(width).to(DEVICE)
    post.deliver(sent, 0)
    found = push_add_squares(x, sent[1], weight, post.mail)
    wanted = add_squares(x, weight, sent[0] + sent[1] + sent[2])
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine, theirs)


def test_the_best_id_of_all_ranks_wins_and_the_lowest_among_equal_ones() -> None:
    post = Post()
    values = [[1.0, -2.0, 0.0, 7.0, -1e30], [0.5, -1.0, -0.0, 7.0, -1e30], [-3.0, -1.5, 0.0, 7.0, float("-inf")]]
    ids = [[11, 12, 13, 14, 70_000], [211, 212, 3, 214, 4], [311, 312, 313, 2, 5]]
    values_SR, ids_SR = torch.tensor(values, device=DEVICE), torch.tensor(ids, device=DEVICE)
    keys = [(sortable(each) << 32) | (LOW_BITS - own) for each, own in zip(values_SR, ids_SR, strict=True)]
    for turn in range(3):
        post.deliver_words(keys, turn)
        assert best_of_ranks(values_SR[1], ids_SR[1], post.mail).tolist() == [11, 212, 3, 2, 4]
        assert post.is_empty(1)
        post.boxes[::2].view(torch.int32).fill_(empty_word(torch.float32))
    assert post.mail.state.tolist() == [3, 0]


@pytest.mark.parametrize("rank", range(SIZE))
def test_everybody_gets_the_words_of_rank_0(rank: int) -> None:
    post, words = Post(rank), [torch.arange(6, device=DEVICE).view(2, 3) * 10**each - 1 for each in range(SIZE)]
    post.deliver_words(words, 0)
    assert torch.equal(words_of_first(words[rank], post.mail), words[0])
    for reader in range(SIZE):
        if reader != rank:
            pushed = post.boxes.view(torch.int64)[reader, 0, rank, :6]
            assert torch.equal(pushed, words[rank].flatten())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_an_empty_long_is_neither_a_token_nor_a_key(dtype: torch.dtype) -> None:
    empty = torch.full((8 // dtype.itemsize,), empty_word(dtype), dtype=WORDS[dtype]).view(torch.int64).item()
    assert empty == empty_long(dtype) < -1
    assert LOW_BITS - (empty & LOW_BITS) > 1 << 30, "no vocabulary is so large"


def test_rows_of_a_shard_are_zeros_where_another_rank_holds_them() -> None:
    table, ids = torch.randn(5, 20).to(DEVICE), torch.tensor([9, 10, 14, 15, 12, 0], device=DEVICE)
    wanted = torch.zeros(6, 20, device=DEVICE)
    wanted[[1, 2, 4]] = table[[0, 4, 2]]
    assert torch.equal(shard_rows(table, ids, first=10), wanted)
