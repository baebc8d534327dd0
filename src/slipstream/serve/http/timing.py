"""When the tokens of one HTTP request came."""

from slipstream.serve.http.job import Choice, Fresh
from slipstream.serve.http.metrics import Metrics
from slipstream.telemetry.clock import Clock


class Timing:
    """Feeds the histograms; made when a request comes."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics, self._clock = metrics, clock
        self._came_s = clock.now()
        self._first_s: dict[int, float] = {}  # by choice
        self._last_s: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        """Since the request came."""
        return self._clock.now() - self._came_s

    def saw(self, choice: Choice, fresh: Fresh) -> None:
        """A chunk came."""
        now, metrics = self._clock.now(), self._metrics
        if not fresh.num_tokens:
            if choice.prompt_alone:
                self._ended(choice, now)
            return
        before = self._last_s.get(choice.index)
        if before is None:
            self._first_s[choice.index] = now
            metrics.first_token.observe(now - self._came_s)
        else:
            metrics.inter_chunk.observe(now - before)
            share = (now - before) / fresh.num_tokens
            for _ in range(fresh.num_tokens):
                metrics.inter_token.observe(share)
        self._last_s[choice.index] = now
        metrics.answer_tokens.inc(fresh.num_tokens)
        if choice.end is not None:
            self._ended(choice, now)

    def _ended(self, choice: Choice, now: float) -> None:
        metrics, later = self._metrics, max(0, choice.num_tokens - 1)
        metrics.end_to_end.observe(now - self._came_s)
        metrics.answers.labels(choice.finish_reason).inc()
        if later:
            metrics.per_output_token.observe((now - self._first_s[choice.index]) / later)
