"""Log-probabilities of a prompt's own tokens, a few rows at a time: a long prompt's scores are never held together.

Shape letters: T packed positions of a forward, D hidden width, R scored rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from slipstream.flow.logprobs import Logprobs
from slipstream.flow.output import Run
from slipstream.flow.prefill import Chunk, Entry
from slipstream.models.decoder import Decoder
from slipstream.verify.logprobs import prompt_logprobs

ROWS = 64  # scored together; on a CPU so many rows give the bits that each has alone


def score_prompts(
    target: Decoder, chunks: Sequence[Chunk], entries: Sequence[Entry], final_TD: Tensor
) -> list[Run | None]:
    """For each chunk whose entry asks: a run without tokens, with those of the tokens that follow its positions.

    Every rank takes part, because the vocabulary may be cut. What follows a context's last position is not its own.
    """
    rows: list[int] = []
    tokens: list[int] = []
    wanted: list[int] = []
    counts, begin = [0] * len(chunks), 0
    for place, (chunk, entry) in enumerate(zip(chunks, entries, strict=True)):
        if entry.score is not None:
            following = entry.context[chunk.start + 1 : chunk.stop + 1]
            rows += range(begin, begin + len(following))
            tokens += following
            wanted += [entry.score] * len(following)
            counts[place] = len(following)
        begin += chunk.stop - chunk.start
    found = iter(_scored(target, final_TD, rows, tokens, wanted))
    return [
        None
        if entry.score is None
        else Run(
            request=chunk.request,
            tokens=(),
            proposed=0,
            depth=0,
            prompt_logprobs=tuple(next(found) for _ in range(count)),
        )
        for chunk, entry, count in zip(chunks, entries, counts, strict=True)
    ]


def joined(first: Run | None, scored: Run | None) -> Run | None:
    """A context's first token with what its last chunk was scored."""
    if first is None or scored is None:
        return first or scored
    return replace(first, prompt_logprobs=scored.prompt_logprobs)


def _scored(
    target: Decoder, final_TD: Tensor, rows: Sequence[int], tokens: Sequence[int], wanted: Sequence[int]
) -> list[Logprobs]:
    found: list[Logprobs] = []
    for start in range(0, len(rows), ROWS):
        part = slice(start, start + ROWS)
        rows_R = torch.tensor(rows[part], device=final_TD.device)
        tokens_R = torch.tensor(tokens[part], device=final_TD.device)
        found += prompt_logprobs(target.logits(final_TD[rows_R]), tokens_R, wanted[part], target.shard)
    return found
