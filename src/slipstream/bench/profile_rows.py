"""A profile as one JSON object: every number under its name, and what each name means."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from slipstream.bench.placement import accept_length
from slipstream.bench.profile import FIT_STEPS, Case, Profiled, ProfilePlan
from slipstream.bench.profile_acceptance import Accepted, accept_interval
from slipstream.bench.profile_changes import BETTER, Facts, best_changes
from slipstream.bench.profile_definitions import definitions_of
from slipstream.bench.profile_served import Served, served_cycle, served_fields, served_rows
from slipstream.bench.profile_sums import (
    Fit,
    StageRow,
    collectives,
    curve_times,
    draft_step_ms,
    fit_steps,
    p90,
    place_fits,
    stage_rows,
    typical,
    typical_ms,
    wall_ms,
)
from slipstream.bench.profile_verdict import Verdict, judge
from slipstream.bench.profile_words import (
    agreement_sentence,
    balance_sentence,
    bound_sentence,
    change_sentences,
    fit_sentence,
    served_sentence,
    verdict_sentence,
)
from slipstream.bench.spans import EXTEND, VERIFY, is_draft
from slipstream.bench.verify_curve import read_curve

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that a profile says is computed from this."""

    plan: ProfilePlan
    found: Profiled
    accepted: Accepted | None
    unmeasured: str  # why there is no acceptance where there is none


def as_object(evidence: Evidence, about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole profile; about: settings and environment."""
    plan, found, accepted = evidence.plan, evidence.found, evidence.accepted
    rows, fit = stage_rows(plan, found), fit_steps(plan, found)
    main, served = found.cycles[plan.main], served_cycle(plan, found, rows)
    verdict = judge(
        found.judging_ms(plan.main),
        found.judging_ms(plan.plain),
        accepted,
        steps=plan.shape.steps,
        unmeasured=evidence.unmeasured,
    )
    curve = curve_times(plan, found)
    reading = read_curve({tokens: median(times) for tokens, times in curve.items()})
    changes = best_changes(_facts(evidence, rows, fit, served))
    wall, total = wall_ms(main), sum(row.ms for row in rows)
    step_ms = draft_step_ms(main)
    sentences = [
        verdict_sentence(verdict),
        bound_sentence(served_rows(rows, served), wall if served is None else served.cycle_ms),
        *([] if served is None else [served_sentence(served)]),
        balance_sentence(verdict),
        fit_sentence(fit),
        f"{reading.sentence}.",
        f"D = {step_ms:.3f} ms a further draft step, V(1) = {median(curve[1]):.3f} ms.",
        agreement_sentence(total, wall),
        *change_sentences(changes),
    ]
    found_object = {
        "profile_version": VERSION,
        **about,
        "verdict": verdict.word,
        "sentences": sentences,
        "verify_curve": _curve_rows(curve),
        "reading": reading.word,
        "slope_ms": reading.slope_ms,
        "jump_ms": reading.jump_ms,
        "reading_sentence": reading.sentence,
        "draft_step_ms": step_ms,
        **served_fields(served),
        **_balance(verdict, found.cycle_ms(plan.main), found.cycle_ms(plan.plain)),
        **_fit_fields(fit),
        **_stage_fields(rows, wall, found),
        "draft_placements": _place_rows(plan, found),
        "collectives": _collective_rows(found),
        "acceptance": _acceptance_fields(accepted, plan.shape.steps),
        "changes": [{"change": each.change, "change_gain": each.gain, "formula": each.formula} for each in changes],
    }
    return {**found_object, "definitions": definitions_of(found_object)}


def _curve_rows(curve: Mapping[int, list[float]]) -> list[dict[str, Any]]:
    one = median(curve[min(curve)])
    return [
        {
            "tokens": tokens,
            "ms": median(times),
            "p90_ms": p90(times),
            "over_one": median(times) / one,
            "num_cycles": len(times),
        }
        for tokens, times in curve.items()
    ]


def _balance(verdict: Verdict, cycle_ms: float, plain_ms: float) -> dict[str, Any]:
    return {
        "plain_step_ms": plain_ms,
        "cycle_ms": cycle_ms,
        "cycle_ratio": verdict.ratio,
        "cycle_ratio_low": verdict.ratio_low,
        "cycle_ratio_high": verdict.ratio_high,
        "break_even_accept_length": verdict.ratio,
        "gain": verdict.gain,
        "gain_low": verdict.gain_low,
        "gain_high": verdict.gain_high,
        "reason": verdict.reason,
    }


def _fit_fields(fit: Fit) -> dict[str, Any]:
    points = [
        {"steps": steps, "measured_ms": ms, "fitted_ms": fit.at(steps), "residual_ms": ms - fit.at(steps)}
        for steps, ms in fit.points
    ]
    return {"fit_a_ms": fit.a_ms, "fit_b_ms": fit.b_ms, "fit_residual_ms": fit.residual_ms, "step_fit": points}


def _stage_fields(rows: list[StageRow], wall: float, found: Profiled) -> dict[str, Any]:
    total = sum(row.ms for row in rows)
    bare = median(found.bare_ms) if found.bare_ms else None
    unexplained = {"stage": "unexplained", "stage_ms": wall - total, "share_of_cycle": (wall - total) / wall}
    nothing = dict.fromkeys(
        (
            "stage_median_ms",
            "stage_p90_ms",
            "communication_ms",
            "bytes",
            "flops",
            "stage_floor_ms",
            "stage_share_of_floor",
        )
    )
    return {
        "stages": [*(_stage_row(row, wall) for row in rows), {**nothing, **unexplained}],
        "stage_sum_ms": total,
        "wall_ms": wall,
        "unexplained_share": (wall - total) / wall,
        "bare_cycle_ms": bare,
        "marks_overhead": None if bare is None else wall / bare - 1,
        "read_tb_per_s": found.read_bytes_per_s / 1e12,
    }


def _stage_row(row: StageRow, wall: float) -> dict[str, Any]:
    return {
        "stage": row.label,
        "stage_ms": row.ms,
        "stage_median_ms": row.median_ms,
        "stage_p90_ms": row.p90_ms,
        "share_of_cycle": row.ms / wall,
        "communication_ms": row.communication_ms,
        "bytes": None if row.count is None else round(row.count.num_bytes),
        "flops": None if row.count is None else round(row.count.flops),
        "stage_floor_ms": row.floor_ms,
        "stage_share_of_floor": row.share_of_floor,
    }


def _place_rows(plan: ProfilePlan, found: Profiled) -> list[dict[str, Any]]:
    """D, the whole draft and the cycle under every placement."""
    fits = place_fits(found)
    rows = []
    for place, runs in found.placed.items():
        cycles = typical(runs[FIT_STEPS[-1]])
        labels = dict.fromkeys(span.label for cycle in cycles for span in cycle.spans)
        drafting = [label for label in labels if label == EXTEND or is_draft(label)]
        rows.append(
            {
                "placement": str(place),
                "draft_step_ms": draft_step_ms(cycles),
                "placement_draft_ms": sum(median(each.stage_ms(label) for each in cycles) for label in drafting),
                "placement_cycle_ms": fits[place].at(plan.shape.steps),
            }
        )
    return rows


def _collective_rows(found: Profiled) -> list[dict[str, Any]]:
    rows = []
    for each in collectives(found.watched):
        names = {"stage": each.label, **{key: getattr(each, key) for key in ("role", "op", "name", "count")}}
        times = {"us": each.us, "us_p90": each.p90_us, "ms_per_cycle": each.ms}
        rows.append({**names, "message_bytes": round(each.num_bytes), **times})
    return rows


def _acceptance_fields(accepted: Accepted | None, steps: int) -> dict[str, Any] | None:
    if accepted is None:
        return None
    known = [each for each in range(accepted.steps + 1) if accepted.knows(each)]
    low, high = accept_interval(accepted, steps)
    return {
        "num_answers": len(accepted.answers),
        "accept_steps": accepted.steps,
        "accept_length_at_steps": accepted.accept_length(steps),
        "accept_length_low": low,
        "accept_length_high": high,
        "accept_lengths": [{"steps": each, "accept_length": accepted.accept_length(each)} for each in known],
        **{name: value for name, value in accepted.total.named().items() if name != "accept_length"},
    }


def _facts(evidence: Evidence, rows: list[StageRow], fit: Fit, served: Served | None) -> Facts:
    plan, found = evidence.plan, evidence.found
    lengths, better = _lengths(evidence)
    cases: dict[int, Case] = {0: plan.plain, **plan.fits()} if plan.shape.is_chain else {}
    cases[plan.shape.steps] = plan.main
    return Facts(
        steps=plan.shape.steps,
        cycle_ms=typical_ms(found.judging_ms(plan.main)),
        cycles_ms={steps: typical_ms(found.judging_ms(case)) for steps, case in cases.items()},
        lengths=lengths,
        better_length=better,
        length_word="decreed" if evidence.accepted is None else "measured",
        plain_verify_ms=median(each.stage_ms(VERIFY) for each in found.cycles[plan.plain]),
        stages=served_rows(rows, served),
        runs_ahead=served is not None,
        fit=fit,
        places=place_fits(found),
        place=str(plan.draft.placement),
    )


def _lengths(evidence: Evidence) -> tuple[dict[int, float], float]:
    """Accept lengths by number of steps, and that of a better draft at the profiled one."""
    steps, accepted, decreed = evidence.plan.shape.steps, evidence.accepted, evidence.plan.acceptance
    if accepted is None:
        lengths = {each: accept_length(each, decreed) for each in range(max(steps, FIT_STEPS[-1]) + 1)}
        return lengths, accept_length(steps, [min(1.0, each + BETTER) for each in decreed])
    lengths = {each: accepted.accept_length(each) for each in range(accepted.steps + 1) if accepted.knows(each)}
    rates = [min(1.0, each + BETTER) for each in accepted.total.acceptance_by_position] or [BETTER]
    return lengths, accept_length(steps, rates)
