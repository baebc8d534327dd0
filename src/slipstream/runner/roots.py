"""The token after a context: drawn as any other, or known from before a preemption.

Shape letters: S contexts, V the part of the vocabulary that this rank scores.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream.attention.tree import TokenTree, chain
from slipstream.flow.logprobs import Logprobs
from slipstream.flow.prefill import Entry
from slipstream.parallel.cut import Shard
from slipstream.runner.report import report
from slipstream.verify.distribution import sampling_rows
from slipstream.verify.grammar import Masks
from slipstream.verify.history import History, open_history
from slipstream.verify.processors import draw_processed


class Roots(NamedTuple):
    """Where contexts go on."""

    tokens_S: Tensor
    histories: list[History | None]  # which have seen those tokens
    logprobs: list[tuple[Logprobs, ...] | None]


def last_rows(entries: Sequence[Entry], device: torch.device) -> TokenTree:
    """A tree of one row for each context: its last token."""
    tokens_S = torch.tensor([entry.context[-1] for entry in entries], dtype=torch.int64, device=device)
    return chain(tokens_S[:, None])


def find_roots(
    entries: Sequence[Entry], tree: TokenTree, logits_SV: Tensor, shard: Shard, masks: Masks | None
) -> Roots:
    """The roots of contexts whose last rows have these logits; tree: those rows, see `last_rows`."""
    device = logits_SV.device
    requests = [each.request for each in entries]
    sampling = sampling_rows(
        [each.params for each in requests], [each.seed for each in requests], vocab_size=shard.total, device=device
    )
    histories = [
        open_history(
            each.params,
            prompt=each.prompt,
            answered=entry.context[len(each.prompt) :],
            stop_ids=each.stop_ids,
            shard=shard,
            device=device,
        )
        for each, entry in zip(requests, entries, strict=True)
    ]
    positions_S = torch.tensor([len(entry.context) for entry in entries], device=device)
    drawn_S, scores = draw_processed(logits_SV, tree, histories, sampling, positions_S, shard, masks)
    known_S = torch.tensor([-1 if entry.root is None else entry.root for entry in entries], device=device)
    tokens_S = torch.where(known_S < 0, drawn_S, known_S)
    found: list[tuple[Logprobs, ...] | None] = [None] * len(entries)
    if scores is not None:
        rows = list(torch.arange(len(entries), device=device).split(1))
        found = report(histories, rows, list(drawn_S.split(1)), scores, shard)
    for history, token in zip(histories, tokens_S.split(1), strict=True):
        if history is not None:
            history.push(token)
    return Roots(tokens_S, histories, found)
