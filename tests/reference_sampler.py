"""Sampling the slow way: the whole sequence through the target for every token, then transformers' processors."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LogitsProcessor
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from slipstream.attention.dense import DenseAttend
from slipstream.config.sampling import SamplingParams
from slipstream.kernels.noise import gumbel_noise
from slipstream.models.decoder import Decoder
from slipstream.verify.finish import Matcher


@dataclass(kw_only=True)
class Sampled:
    """An answer, and the log-probabilities of every id at each of its tokens."""

    tokens: list[int] = field(default_factory=list)
    raw: list[Tensor] = field(default_factory=list)
    processed: list[Tensor] = field(default_factory=list)


class OpenAiPenalties(LogitsProcessor):
    """What OpenAI's reference says of frequency and presence; transformers has neither."""

    def __init__(self, params: SamplingParams, num_prompt: int) -> None:
        self.params, self.num_prompt = params, num_prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        counts = torch.zeros(scores.shape[1])
        for token in input_ids[0, self.num_prompt :].tolist():
            counts[token] += 1
        return scores - self.params.frequency_penalty * counts - self.params.presence_penalty * (counts > 0)


def processors(params: SamplingParams, num_prompt: int, stop_ids: Collection[int]) -> list[LogitsProcessor]:
    """What changes scores before the temperature, in order."""
    found: list[LogitsProcessor] = []
    if params.bias:
        found.append(SequenceBiasLogitsProcessor([[[token], float(value)] for token, value in params.bias]))
    found += [RepetitionPenaltyLogitsProcessor(params.repetition_penalty), OpenAiPenalties(params, num_prompt)]
    if params.bad_word_ids:
        found.append(NoBadWordsLogitsProcessor([list(word) for word in params.bad_word_ids]))
    if params.min_tokens and stop_ids:
        end = {"device": torch.device("cpu")}
        found.append(MinNewTokensLengthLogitsProcessor(num_prompt, params.min_tokens, sorted(stop_ids), **end))
    return found


def warpers(params: SamplingParams) -> list[LogitsProcessor]:
    """Temperature and what cuts the distribution, in order."""
    if params.greedy:
        return []
    found: list[LogitsProcessor] = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        found.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        found.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        found.append(MinPLogitsWarper(params.min_p))
    return found


def changed(
    params: SamplingParams, prompt: list[int], answer: list[int], logits_V: Tensor, stop_ids: Collection[int]
) -> Tensor:
    """One row's scores before the temperature."""
    ids, scores = torch.tensor([prompt + answer]), logits_V[None].clone()
    for processor in processors(params, len(prompt), stop_ids):
        scores = processor(ids, scores)
    return scores[0]


def only(scores: Tensor, tokens: Collection[int]) -> Tensor:
    """Scores of these tokens alone; where bans leave none of them, they are all alike."""
    kept = torch.full_like(scores, -math.inf)
    kept[0, sorted(tokens)] = scores[0, sorted(tokens)].clamp(min=-1e30)
    return kept


@torch.inference_mode()
def sample(
    target: Decoder,
    prompt: list[int],
    params: SamplingParams,
    *,
    seed: int,
    stop_ids: Collection[int],
    matcher: Matcher,
    allowed: Callable[[list[int]], Collection[int]] | None = None,
    ended: Callable[[list[int]], bool] = lambda answer: False,
) -> Sampled:
    """Answer a prompt; allowed, ended: what a grammar says of an answer so far."""
    found = Sampled()
    for _ in range(params.max_tokens):
        tokens = torch.tensor(prompt + found.tokens)
        hidden = target(tokens, DenseAttend(1, len(tokens), device=tokens.device))
        logits_V = target.logits(hidden.final_TD[-1:])[0]
        scores = changed(params, prompt, found.tokens, logits_V, stop_ids)[None]
        if allowed is not None:
            scores = only(scores, allowed(found.tokens))
        for warper in warpers(params):
            scores = warper(tokens[None], scores)
        noise = gumbel_noise(torch.tensor([seed]), torch.tensor([len(tokens)]), torch.arange(scores.shape[1]))
        token = int((scores if params.greedy else scores + noise).argmax())
        found.tokens.append(token)
        found.raw.append(logits_V.log_softmax(-1))
        found.processed.append(scores[0].log_softmax(-1))
        if matcher.push(token) or token in stop_ids or ended(found.tokens):
            break
    return found
