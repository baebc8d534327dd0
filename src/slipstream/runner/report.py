"""Put the log-probabilities that requests asked for into what they got.

Shape letters: S requests, R emitted tokens of those that asked.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from slipstream.flow.logprobs import Logprobs
from slipstream.flow.output import Run
from slipstream.parallel.cut import Shard
from slipstream.verify.accept import Accepted
from slipstream.verify.logprobs import Scores, logprobs
from slipstream.verify.processors import Histories


def report_runs(
    runs: Sequence[Run], histories: Histories, accepted: Accepted, scores: Scores | None, shard: Shard
) -> tuple[Run, ...]:
    """Runs of a cycle; every rank takes part, because the vocabulary may be cut."""
    if scores is None:
        return tuple(runs)
    num_rows = scores.raw_RV.shape[0] // len(runs)
    counts = [len(run.tokens) for run in runs]
    rows = [place * num_rows + accepted.rows_SD[place, :count] for place, count in enumerate(counts)]
    tokens = [accepted.tokens_SD[place, :count] for place, count in enumerate(counts)]
    found = report(histories, rows, tokens, scores, shard)
    return tuple(replace(run, logprobs=each) for run, each in zip(runs, found, strict=True))


def report(
    histories: Histories, rows: Sequence[Tensor], tokens: Sequence[Tensor], scores: Scores, shard: Shard
) -> list[tuple[Logprobs, ...] | None]:
    """For each request those of its tokens, drawn from these rows of the scores; None where nobody asked."""
    wanted = [None if each is None else each.params.logprobs for each in histories]
    asked = [place for place, number in enumerate(wanted) if number is not None]
    rows_R, tokens_R = torch.cat([rows[place] for place in asked]), torch.cat([tokens[place] for place in asked])
    numbers = [number for place, number in enumerate(wanted) if number is not None for _ in range(len(rows[place]))]
    left = iter(logprobs(scores.take(rows_R), tokens_R, numbers, shard))
    return [
        None if number is None else tuple(next(left) for _ in range(len(rows[place])))
        for place, number in enumerate(wanted)
    ]
