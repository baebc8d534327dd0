"""The engine's state for whoever watches it: numbers for /metrics, settings for /server_info."""

from typing import Any

from slipstream.engine.engine import Engine
from slipstream.parallel.stamps import Stage, Stamps
from slipstream.serve.llm import LLM
from slipstream.serve.messages import Report
from slipstream.serve.recent import RecentCycles
from slipstream.telemetry.clock import Clock

TELL_S = 0.1
CYCLE_STAGES = {each.name.lower(): each for each in (Stage.EXTEND, Stage.PROPOSE, Stage.VERIFY, Stage.ACCEPT)}


class Reporter:
    """Says how the engine is: ten times a second while it works, and once when it has nothing left to do."""

    def __init__(self, engine: Engine, clock: Clock, stamps: Stamps | None) -> None:
        """stamps: of this process's rank, if it holds one."""
        self._engine, self._clock, self._stamps = engine, clock, stamps
        self._before = None if stamps is None else stamps.seconds()
        self.host_s = 0.0  # of the loop, besides prefills and cycles
        self._next_s = clock.now()
        self._recent = RecentCycles(engine, self._stages)

    def due(self) -> Report | None:
        """A step is over: a report, if it is time for one."""
        self._recent.see()
        if self._engine.busy and self._clock.now() < self._next_s:
            return None
        return self.now()

    def now(self) -> Report:
        """A report."""
        self._next_s = self._clock.now() + TELL_S
        engine, totals = self._engine, self._engine.totals
        return Report(
            running=len(engine.running),
            waiting=len(engine.line),
            kv_pages=engine.config.num_pages - 1,
            kv_pages_free=engine.pages.num_free,
            prefix_asked=engine.pages.statistics.asked_tokens,
            prefix_hits=engine.pages.statistics.hit_tokens,
            preemptions=engine.num_preemptions,
            batches=engine.costs.batches,
            cycles=totals.cycles,
            proposed=totals.proposed,
            emitted=totals.emitted,
            not_drafted=totals.not_drafted,
            reached=list(totals.reached),
            passed=list(totals.passed),
            cycle_s=engine.costs.cycle_s,
            stage_s=self._stages(),
            drift=engine.gauge.drift,
            cycle_ratio=engine.costs.cycle_ratio(engine.speculation),
            recent=self._recent.take(),
        )

    def _stages(self) -> dict[str, float]:
        """Seconds by stage, none of them within another; `cycle` is what of cycles is not known more closely."""
        costs, before = self._engine.costs, self._before
        now = None if self._stamps is None else self._stamps.seconds()
        parts: dict[str, float] = {}
        if now is not None and before is not None:
            parts = {name: now[stage] - before[stage] for name, stage in CYCLE_STAGES.items()}
        rest = {"cycle": max(0.0, costs.cycle_s - sum(parts.values())), "prefill": costs.prefill_s}
        return {**parts, **rest, "host": self.host_s}


def describe(llm: LLM, *, warm_up_s: float = 0.0) -> dict[str, Any]:
    """What came up, under the names of docs/serving.md. warm_up_s: how long made-up requests ran."""
    speculation, config, choice = llm.speculation, llm.engine.config, llm.started.choice
    shares = llm.shares()
    captured = shares[0].graphs if shares else ()
    return {
        "device": str(llm.device),
        "dtype": str(llm.dtype).removeprefix("torch."),
        "weights": "dummy" if llm.started.wanted.target.path is None else "checkpoint",
        "tp": llm.tp,
        "max_len": llm.max_len,
        "max_batch": config.max_batch,
        "graph_sizes": None if config.graph_sizes is None else list(config.graph_sizes),
        "load_s": llm.load_s,
        "warm_up_s": warm_up_s,
        "graphs": {
            "shapes": len(captured),
            "seconds": sum(seconds for _, seconds, _ in captured),
            "bytes": sum(num_bytes for _, _, num_bytes in captured),
        },
        "speculation": {
            "steps": speculation.steps,
            "topk": speculation.topk,
            "draft_tokens": speculation.draft_tokens,
            "draft": None if llm.draft_path is None else llm.draft_path.name,
            "placement": None if llm.placement is None else str(llm.placement),
            "placement_trials": None if choice is None else [str(each.placement) for each in choice.trials],
            "draft_max_len": config.draft_max_len,
            "synthetic_accept_length": llm.synthetic_accept_length,
        },
        "cache": {"page_size": config.page_size, "num_pages": config.num_pages, "prefix_cache": config.prefix_cache},
        "warning": llm.started.warning,
        "ranks": [
            {
                "rank": share.rank,
                "host": share.host,
                "device": share.device,
                "target_bytes": share.target_bytes,
                "draft_bytes": share.draft_bytes,
                "kv_bytes": share.kv_bytes,
                "draft_group": share.draft_group,
                "shares_embedding": share.shares_embedding,
                "shards": {name: list(shape) for name, shape in share.shards},
                "graphs": [{"shape": name, "seconds": s, "bytes": size} for name, s, size in share.graphs],
            }
            for share in shares
        ],
        "wiring": _wiring(llm),
    }


def _wiring(llm: LLM) -> dict[str, Any] | None:
    """Which of the target's layers feed the draft; None where this process holds no draft."""
    if llm.placement is None:
        return None
    try:
        drafter = llm.worker.drafter
    except ValueError:  # every rank is elsewhere
        return None
    if drafter is None:
        return None
    draft = drafter.draft
    return {
        "captures": list(draft.model.config.captures),
        "convention": str(draft.convention),
        "draft_vocab_size": draft.model.config.draft_vocab_size,
        "shares_embedding": draft.shares_embedding,
    }
