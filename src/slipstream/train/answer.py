"""The target answers many prompts at once, in waves of like length; ids are kept as they were drawn.

Shape letters: B sequences of a wave, P padded prompt length, D hidden, W vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.attention.dense import DenseCache, DensePrefill, DenseStep
from slipstream.models.decoder import Decoder
from slipstream.train.conversations import Conversation

ROUND = 64  # keys are read up to a multiple of this
DROP_EVERY = 16  # steps between looks at which sequences have ended
DROP_SHARE = 0.1  # rows that must have ended before the cache is copied smaller
PREFILL_TOKENS = 1 << 19
NOT_EMITTED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How answers are drawn."""

    max_tokens: int
    batch: int  # sequences of a wave
    stop_ids: tuple[int, ...]
    min_p: float = 0.0  # drop tokens less likely than this share of the best one; sampled rows only
    seed: int = 0


class Answerer:
    """A target with its head in fp32 and its own random stream."""

    def __init__(self, target: Decoder, options: AnswerOptions) -> None:
        self.target, self.options = target, options
        self.device = target.embed.weight.device
        self.head_WD = target.head.weight.detach().float()
        self.stops = torch.tensor(options.stop_ids, device=self.device)
        self.generator = torch.Generator(self.device).manual_seed(options.seed)

    @torch.no_grad()
    def answer(
        self,
        prompts: Sequence[list[int]],
        temperatures: Sequence[float],
        *,
        on_tokens: Callable[[int], None] = lambda num_tokens: None,
    ) -> list[Conversation]:
        """Answer every prompt, each at its own temperature (0 = greedy); results stand in the prompts' order."""
        captures = self.target.captures
        self.target.capture(())
        found: dict[int, Conversation] = {}
        for rows in waves([len(prompt) for prompt in prompts], self.options.batch):
            answers = self._wave([prompts[row] for row in rows], [temperatures[row] for row in rows])
            on_tokens(sum(len(ids) for ids in answers))
            for row, ids in zip(rows, answers, strict=True):
                cut = not ids or ids[-1] not in self.options.stop_ids
                found[row] = Conversation(tokens=prompts[row] + ids, num_prompt=len(prompts[row]), cut=cut)
        self.target.capture(captures)
        return [found[row] for row in range(len(prompts))]

    def _wave(self, prompts: list[list[int]], temperatures: list[float]) -> list[list[int]]:
        """Answer the prompts of one wave: ids of each, the stop id included."""
        max_tokens, longest = self.options.max_tokens, max(len(prompt) for prompt in prompts)
        lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        temperature_B = torch.tensor(temperatures, dtype=torch.float32, device=self.device)
        cache, hidden_BD = self._prefill(prompts, lengths_B, length=_round_up(longest + max_tokens))
        out = torch.full((len(prompts), max_tokens), NOT_EMITTED, device=self.device)
        live_B, done_B = torch.arange(len(prompts), device=self.device), torch.zeros_like(lengths_B, dtype=torch.bool)
        for step in range(max_tokens):
            next_B = self._pick(hidden_BD, temperature_B)
            out[live_B, step] = torch.where(done_B, NOT_EMITTED, next_B)
            done_B = done_B | torch.isin(next_B, self.stops)
            if step + 1 == max_tokens:
                break
            if (step + 1) % DROP_EVERY == 0:
                keep = (~done_B).nonzero()[:, 0]
                if not len(keep):
                    break
                if len(keep) <= (1 - DROP_SHARE) * len(done_B):
                    cache.keep(keep)
                    live_B, done_B, next_B = live_B[keep], done_B[keep], next_B[keep]
                    lengths_B, temperature_B = lengths_B[keep], temperature_B[keep]
            attend = DenseStep(cache, lengths_B + step, length=_round_up(longest + step + 1))
            hidden_BD = self.target(next_B, attend).final_TD
        return [[token for token in ids if token != NOT_EMITTED] for ids in out.tolist()]

    def _prefill(self, prompts: list[list[int]], lengths_B: Tensor, *, length: int) -> tuple[DenseCache, Tensor]:
        """Run the prompts, right-padded: the filled cache and each prompt's last hidden state [B, D]."""
        config, padded = self.target.config, max(len(prompt) for prompt in prompts)
        cache = DenseCache(
            num_layers=config.num_layers,
            num_sequences=len(prompts),
            length=length,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=self.target.embed.weight.dtype,
            device=self.device,
        )
        tokens_BP = torch.tensor([prompt + [0] * (padded - len(prompt)) for prompt in prompts], device=self.device)
        attend = DensePrefill(cache, len(prompts), padded)
        final = self.target(tokens_BP.flatten(), attend).final_TD
        last_B = torch.arange(len(prompts), device=self.device) * padded + lengths_B - 1
        return cache, final[last_B]

    def _pick(self, hidden_BD: Tensor, temperature_B: Tensor) -> Tensor:
        """Each row's next token: the best one, or a draw by the exponential race."""
        logits_BW = F.linear(hidden_BD.float(), self.head_WD)
        greedy_B = temperature_B == 0
        scaled_BW = logits_BW / torch.where(greedy_B, 1.0, temperature_B)[:, None]
        if self.options.min_p > 0:
            floor_B1 = scaled_BW.amax(-1, keepdim=True) + math.log(self.options.min_p)
            scaled_BW = scaled_BW.masked_fill(scaled_BW < floor_B1, float("-inf"))
        noise_BW = torch.empty_like(scaled_BW).exponential_(generator=self.generator).log_()
        return (scaled_BW - noise_BW.masked_fill_(greedy_B[:, None], 0.0)).argmax(-1)


def waves(lengths: Sequence[int], batch: int) -> Iterator[list[int]]:
    """Rows of each wave, sorted by length, as many as the batch and the prefill allow."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (lengths[row], row)):
        if rows and (len(rows) == batch or (len(rows) + 1) * lengths[row] > PREFILL_TOKENS):
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def _round_up(length: int) -> int:
    return -(-length // ROUND) * ROUND
