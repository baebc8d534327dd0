"""What a request asks of sampling and of its end."""

import math
from dataclasses import dataclass

MAX_TOP_K = 2**31
MIN_TEMPERATURE = 1e-6  # logits over less than that leave the range of fp32, and their order with it


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling and stop parameters; the defaults are greedy decoding.

    Filters apply in Hugging Face's order: temperature, top_k, top_p, min_p.
    A request without a seed gets a random one, which the output reports.

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

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            raise ValueError(f"stop must be a tuple of strings, not the string {self.stop!r}; pass ({self.stop!r},)")
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or more, not {self.temperature}")
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(f"temperature {self.temperature} is below {MIN_TEMPERATURE}; use 0, which is greedy")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}; 1 turns it off")
        if not 0 <= self.top_k < MAX_TOP_K:
            raise ValueError(f"top_k must be 0 (off) or more and below {MAX_TOP_K}, not {self.top_k}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p must be at least 0 (off) and below 1, not {self.min_p}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be 1 or more, not {self.max_tokens}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be between 0 and 2**63 - 1, not {self.seed}")
        if any(not text for text in self.stop):
            raise ValueError("a stop string is empty; leave it out")

    @property
    def greedy(self) -> bool:
        """Whether the target's argmax is taken."""
        return self.temperature == 0
