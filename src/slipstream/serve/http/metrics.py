"""/metrics: what the HTTP process sees of requests, and what the engine reports of itself.

docs/serving.md lists every name; deploy/ holds a dashboard over them.
"""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from slipstream.serve.messages import Report

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHORT_S = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
LONG_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0)
ReportOf = Callable[[], Report | None]


class Metrics:
    """A registry of its own, so that two servers in one process do not share numbers."""

    def __init__(self, report: ReportOf, *, model: str, compat: str | None) -> None:
        self.registry = CollectorRegistry()
        self.prompt_tokens = Counter(
            "slipstream_prompt_tokens", "Tokens of prompts that were answered.", registry=self.registry
        )
        self.answer_tokens = Counter("slipstream_generation_tokens", "Tokens of answers.", registry=self.registry)
        self.answers = Counter(
            "slipstream_answers", "Answers by how they ended.", ["finish_reason"], registry=self.registry
        )
        self.responses = Counter(
            "slipstream_http_responses", "Answered HTTP requests.", ["path", "status"], registry=self.registry
        )
        self.open_requests = Gauge(
            "slipstream_http_requests_open", "HTTP requests being answered.", registry=self.registry
        )
        self.first_token = Histogram(
            "slipstream_time_to_first_token_seconds",
            "From the request to its first token.",
            buckets=LONG_S,
            registry=self.registry,
        )
        self.per_output_token = Histogram(
            "slipstream_time_per_output_token_seconds",
            "Of an answer: its time after the first token over its tokens after the first.",
            buckets=SHORT_S,
            registry=self.registry,
        )
        self.inter_token = Histogram(
            "slipstream_inter_token_latency_seconds",
            "Between two chunks, shared out over the later one's tokens; once a token.",
            buckets=SHORT_S,
            registry=self.registry,
        )
        self.inter_chunk = Histogram(
            "slipstream_inter_chunk_latency_seconds",
            "Between two chunks of an answer.",
            buckets=SHORT_S,
            registry=self.registry,
        )
        self.end_to_end = Histogram(
            "slipstream_request_duration_seconds",
            "From the request to its last token.",
            buckets=LONG_S,
            registry=self.registry,
        )
        self.registry.register(EngineCollector(report))
        if compat == "vllm":
            self.registry.register(VllmCollector(report, model=model))

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)


class EngineCollector(Collector):
    """The engine's own counts, as it last reported them."""

    def __init__(self, report: ReportOf) -> None:
        self._report = report

    def collect(self) -> Iterable[Metric]:
        report = self._report()
        if report is None:
            return
        yield from self._gauges(report)
        yield from self._counters(report)

    def _gauges(self, report: Report) -> Iterable[Metric]:
        used = 1 - report.kv_pages_free / report.kv_pages if report.kv_pages else 0.0
        length = report.emitted / report.cycles if report.cycles else 0.0
        yield GaugeMetricFamily("slipstream_requests_running", "Requests in the batch.", report.running)
        yield GaugeMetricFamily("slipstream_requests_waiting", "Requests in line.", report.waiting)
        yield GaugeMetricFamily("slipstream_kv_usage_ratio", "KV pages held by requests, of all.", used)
        yield GaugeMetricFamily("slipstream_accept_length", "Emitted over cycles, since the start.", length)
        drift = GaugeMetricFamily(
            "slipstream_acceptance_drift", "Accept length lately over that of the engine's first cycles."
        )
        if report.drift is not None:
            drift.add_metric([], report.drift)
        yield drift
        conditional = GaugeMetricFamily(
            "slipstream_acceptance_by_position",
            "P(position accepted | all before it accepted), since the start.",
            labels=["position"],
        )
        for place, (reached, passed) in enumerate(zip(report.reached, report.passed, strict=True), start=1):
            conditional.add_metric([str(place)], passed / reached if reached else 0.0)
        yield conditional
        ratio = GaugeMetricFamily(
            "slipstream_cycle_ratio",
            "R: a cycle's time over a plain step's, where both were seen; also the break-even accept length.",
            labels=["batch"],
        )
        for batch, value in report.cycle_ratio.items():
            ratio.add_metric([str(batch)], value)
        yield ratio

    def _counters(self, report: Report) -> Iterable[Metric]:
        yield _counter("slipstream_preemptions", "Times a request lost its place.", report.preemptions)
        yield _counter("slipstream_prefix_asked_tokens", "Tokens looked up in the prefix cache.", report.prefix_asked)
        yield _counter("slipstream_prefix_hit_tokens", "Of these, found.", report.prefix_hits)
        yield _counter("slipstream_batches", "Cycles of the whole batch.", report.batches)
        yield _counter("slipstream_cycles", "Cycles of requests.", report.cycles)
        yield _counter("slipstream_proposed_tokens", "Drafted tokens that were verified.", report.proposed)
        yield _counter("slipstream_accepted_tokens", "Of these, kept.", report.emitted - report.cycles)
        yield _counter("slipstream_emitted_tokens", "Tokens that cycles brought.", report.emitted)
        yield _by_position("slipstream_position_reached", "Cycles that verified this position.", report.reached)
        yield _by_position("slipstream_position_accepted", "Of these, accepted it.", report.passed)
        yield _counter("slipstream_cycle_seconds", "Time of all cycles, in whatever stage.", report.cycle_s)
        stages = CounterMetricFamily(
            "slipstream_stage_seconds",
            "Time by stage, none within another; cycle: not known more closely.",
            labels=["stage"],
        )
        for stage, seconds in report.stage_s.items():
            stages.add_metric([stage], seconds)
        yield stages


class VllmCollector(Collector):
    """The same counts under vLLM's names and definitions, for tools that read those."""

    def __init__(self, report: ReportOf, *, model: str) -> None:
        self._report, self._labels = report, {"model_name": model, "engine": "0"}

    def collect(self) -> Iterable[Metric]:
        report = self._report()
        if report is None:
            return
        for name, help, value in (
            ("num_drafts", "Verified drafts.", report.reached[0] if report.reached else 0),
            ("num_draft_tokens", "Drafted tokens.", report.proposed),
            ("num_accepted_tokens", "Accepted draft tokens.", report.emitted - report.cycles),
        ):
            yield self._family(f"vllm:spec_decode_{name}", help, [((), value)])
        yield self._family(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by position, from 0.",
            [((str(place),), count) for place, count in enumerate(report.passed)],
            extra=["position"],
        )

    def _family(
        self,
        name: str,
        help: str,
        values: Sequence[tuple[tuple[str, ...], float]],
        *,
        extra: Sequence[str] = (),
    ) -> Metric:
        family = CounterMetricFamily(name, help, labels=[*self._labels, *extra])
        for labels, value in values:
            family.add_metric([*self._labels.values(), *labels], value)
        return family


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(name, help, value=value)


def _by_position(name: str, help: str, counts: Sequence[int]) -> Metric:
    family = CounterMetricFamily(name, help, labels=["position"])
    for place, count in enumerate(counts, start=1):
        family.add_metric([str(place)], count)
    return family
