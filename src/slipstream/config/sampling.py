"""What a request asks of sampling and of its end."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slipstream.config.grammar import Grammar

MAX_TOP_K = 2**31
MAX_TOKEN_ID = 2**31 - 1  # no vocabulary has more
MIN_TEMPERATURE = 1e-6  # logits over less than that leave the range of fp32, and their order with it
MAX_LOGPROBS = 20
MAX_ANSWERS = 1024

Bias = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling and stop parameters; the defaults are greedy decoding.

    Scores are changed in this order: logit_bias, repetition_penalty (prompt and answer, Hugging Face's meaning),
    frequency_penalty and presence_penalty (answer alone, OpenAI's), then bad_words and min_tokens forbid tokens, then
    the grammar forbids all that it does not allow, then temperature, top_k, top_p, min_p. A token that the grammar
    allows and a ban forbids comes only where nothing else may. A request without a seed gets a random one, which the
    output reports; answer i of n has seed + i. min_tokens holds off EOS, stop ids and stop strings. logprobs: how many
    of the likeliest tokens to report at each position, beside the chosen one; prompt_logprobs: the same for each token
    of the prompt but the first, which nothing comes before. The prompt is then run whole, whatever of it is cached.

    Raises:
        ValueError: a value is out of range.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1  # answers to each prompt
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # 1 = off
    logit_bias: Mapping[int, float] | Bias = ()  # kept as `bias`: pairs, by id
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()  # the same and more as token ids; serve adds those of bad_words
    grammar: Grammar | None = None  # what the answer's text must look like; its end ends the answer
    logprobs: int | None = None  # None = off, 0 = the chosen token's alone
    prompt_logprobs: int | None = None  # the same

    def __post_init__(self) -> None:
        _check_draw(self)
        _check_ends(self)
        _check_penalties(self)
        _check_words(self)
        object.__setattr__(self, "logit_bias", _sorted_bias(self.logit_bias))

    @property
    def greedy(self) -> bool:
        """Whether the target's argmax is taken."""
        return self.temperature == 0

    @property
    def bias(self) -> Bias:
        """What logit_bias adds, by id."""
        return tuple(self.logit_bias.items()) if isinstance(self.logit_bias, Mapping) else self.logit_bias

    @property
    def penalised(self) -> bool:
        """Whether a token's score depends on how often it has come."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def processed(self) -> bool:
        """Whether scores are changed before temperature and filters."""
        return bool(self.penalised or self.bias or self.bad_words or self.bad_word_ids or self.min_tokens)

    @property
    def filtered(self) -> bool:
        """Whether a draw cuts its distribution: top-k, top-p or min-p."""
        return not self.greedy and bool(self.top_k or self.top_p < 1 or self.min_p)

    @property
    def as_scored(self) -> bool:
        """Whether a token drawn from the model's own scores is all that is asked for."""
        return not self.processed and self.logprobs is None and self.grammar is None


def _check_draw(params: SamplingParams) -> None:
    if not math.isfinite(params.temperature) or params.temperature < 0:
        raise ValueError(f"temperature must be 0 (greedy) or more, not {params.temperature}")
    if 0 < params.temperature < MIN_TEMPERATURE:
        raise ValueError(f"temperature {params.temperature} is below {MIN_TEMPERATURE}; use 0, which is greedy")
    if not 0 < params.top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, not {params.top_p}; 1 turns it off")
    if not 0 <= params.top_k < MAX_TOP_K:
        raise ValueError(f"top_k must be 0 (off) or more and below {MAX_TOP_K}, not {params.top_k}")
    if not 0 <= params.min_p < 1:
        raise ValueError(f"min_p must be at least 0 (off) and below 1, not {params.min_p}")
    if params.seed is not None and not 0 <= params.seed < 2**63:
        raise ValueError(f"seed must be between 0 and 2**63 - 1, not {params.seed}")
    if not 1 <= params.n <= MAX_ANSWERS:
        raise ValueError(f"n must be between 1 and {MAX_ANSWERS}, not {params.n}")
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and not 0 <= value <= MAX_LOGPROBS:
            raise ValueError(f"{name} must be between 0 and {MAX_LOGPROBS}, not {value}; None turns it off")


def _check_ends(params: SamplingParams) -> None:
    if isinstance(params.stop, str):
        raise ValueError(f"stop must be a tuple of strings, not the string {params.stop!r}; pass ({params.stop!r},)")
    if any(not text for text in params.stop):
        raise ValueError("a stop string is empty; leave it out")
    _check_ids("stop_ids", params.stop_ids)
    if params.max_tokens < 1:
        raise ValueError(f"max_tokens must be 1 or more, not {params.max_tokens}")
    if not 0 <= params.min_tokens <= params.max_tokens:
        raise ValueError(
            f"min_tokens must be between 0 (off) and max_tokens, {params.max_tokens}, not {params.min_tokens}"
        )


def _check_penalties(params: SamplingParams) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        if not -2 <= value <= 2:
            raise ValueError(f"{name} must be between -2 and 2, not {value}; 0 turns it off")
    penalty = params.repetition_penalty
    if not math.isfinite(penalty) or penalty <= 0:
        raise ValueError(f"repetition_penalty must be above 0, not {penalty}; 1 turns it off")


def _check_words(params: SamplingParams) -> None:
    words = params.bad_words
    if isinstance(words, str):
        raise ValueError(f"bad_words must be a tuple of strings, not the string {words!r}; pass ({words!r},)")
    if any(not word.strip() for word in words) or any(not ids for ids in params.bad_word_ids):
        raise ValueError("a bad word is empty; leave it out")
    for ids in params.bad_word_ids:
        _check_ids("bad_word_ids", ids)


def _check_ids(name: str, ids: Iterable[object]) -> None:
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= MAX_TOKEN_ID:
            raise ValueError(
                f"{name} has {token!r} where a token id belongs; ids are whole numbers from 0 to {MAX_TOKEN_ID}"
            )


def _sorted_bias(bias: Mapping[int, float] | Bias) -> Bias:
    """Pairs, by id.

    Raises:
        ValueError: an id that is none, or a value out of range.
    """
    pairs = tuple(sorted(dict(bias).items()))
    _check_ids("logit_bias", (token for token, _ in pairs))
    for token, value in pairs:
        if not -100 <= value <= 100:
            raise ValueError(f"logit_bias of token {token} must be between -100 and 100, not {value}")
    return pairs
