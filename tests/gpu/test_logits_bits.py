"""The 8B shape, random bf16 weights: a row's logits are the same bits whatever rows it is computed with.

Shape letters: S sequences, R rows of each, V vocabulary.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from slipstream.attention.static import static_attend
from slipstream.bench.shapes import full_shape
from slipstream.config.engine import EngineConfig
from slipstream.config.speculation import PLAIN
from slipstream.engine.group import open_executor
from slipstream.flow.orders import LoadTarget, MakePools
from slipstream.kernels.keys import Keys
from slipstream.runner.worker import Worker

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SHAPE, DTYPE, PAGE, LENGTH, COMPANY = "llama-3.1-8b", "bfloat16", 16, 96, 24


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    executor = open_executor(1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    executor.order(LoadTarget(config=full_shape(SHAPE).target, path=None, dtype=DTYPE, max_position=1024))
    pages = COMPANY * (LENGTH // PAGE + 1) + 1
    executor.order(MakePools(config=EngineConfig(speculation=PLAIN, max_len=LENGTH, num_pages=pages)))
    yield executor.worker
    executor.close()


@torch.inference_mode()
def logits(worker: Worker, tokens_SR: Tensor, start: int) -> Tensor:
    """Logits [S, R, V] of tokens that stand from `start` on; sequence s has the s-th run of pages."""
    device, (num_sequences, num_rows) = worker.pool.device, tokens_SR.shape
    each = LENGTH // PAGE + 1
    pages = 1 + torch.arange(num_sequences * each, dtype=torch.int32, device=device).view(num_sequences, each)
    newest = (start + torch.arange(num_rows, device=device)).expand(num_sequences, -1).contiguous()
    keys = Keys(pages=pages, page=PAGE, newest=newest, most=LENGTH)
    hidden = worker.target(tokens_SR.flatten().to(device), static_attend(worker.pool, keys))
    return worker.target.logits(hidden.final_TD).view(num_sequences, num_rows, -1)


def in_pieces(worker: Worker, tokens_SR: Tensor, size: int) -> Tensor:
    """The same, so many rows of each sequence at a time."""
    pieces = [logits(worker, tokens_SR[:, start : start + size], start) for start in range(0, tokens_SR.shape[1], size)]
    return torch.cat(pieces, dim=1)


def test_a_rows_logits_are_the_same_bits_whatever_rows_it_is_computed_with(worker: Worker) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(worker.target.config.vocab_size, (COMPANY, LENGTH), generator=generator)
    alone = in_pieces(worker, tokens[:1], 1)  # plain steps
    assert alone.isfinite().all()
    for size in (2, 4, 6, 16, 64):  # a verified chain, and on to a tile and beyond
        assert torch.equal(in_pieces(worker, tokens[:1], size), alone), f"{size} rows at a time"
    for num_sequences, size in ((4, 1), (16, 4), (16, 6), (COMPANY, 4)):
        found = in_pieces(worker, tokens[:num_sequences], size)[:1]
        assert torch.equal(found, alone), f"{size} rows at a time beside {num_sequences - 1} others"
