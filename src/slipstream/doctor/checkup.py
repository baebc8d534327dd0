"""The whole examination of a target and its draft: the machine, the files, then the wiring on real text."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import torch

from slipstream.config.draft import AS_DECLARED, CaptureConvention, DraftWiring, MapReading
from slipstream.doctor.checkpoint import DraftFiles, Patient, declared_layers, load_patient, open_draft
from slipstream.doctor.compatibility import compatibility
from slipstream.doctor.environment import Environment, look_around
from slipstream.doctor.evidence import Evidence, chosen_prompts, gather
from slipstream.doctor.finding import Finding, Grade, worst
from slipstream.doctor.hypotheses import Search, search, trial_of
from slipstream.doctor.verdict import Outcome, Verdict, judge
from slipstream.doctor.wiring import Wiring
from slipstream.draft.settings import checked_layers
from slipstream.telemetry.clock import Clock, Stopwatch
from slipstream.text.prompts import PromptEntry
from slipstream.train.target import OpenTarget, open_target

LONGEST_PROMPT = 256  # tokens, template included
DEFAULT_PROMPTS, DEFAULT_TOKENS = 16, 24


class Fault(Enum):
    """A mistake that can be planted, to see it found."""

    PLUS_ONE = "layers+1"
    MINUS_ONE = "layers-1"
    REVERSED = "reversed"
    POST_NORM = "post-norm"
    ZEROED = "zeroed-d2t"
    UNSHIFTED = "unshifted"
    ANOTHER = "another-target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be examined, and on how much text."""

    model: str
    draft: Path
    device: torch.device
    dtype: torch.dtype  # of the target
    entries: tuple[PromptEntry, ...]
    num_prompts: int = DEFAULT_PROMPTS
    max_tokens: int = DEFAULT_TOKENS  # of each answer
    convention: CaptureConvention = CaptureConvention.AUTO
    wiring: DraftWiring = AS_DECLARED  # what is said to be known better than the checkpoint
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The wiring's part."""

    verdict: Verdict
    declared: Wiring | None = None  # None: it could not be examined
    search: Search | None = None
    num_prompts: int = 0
    num_tokens: int = 0  # that the target wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Everything that was found."""

    asked: Asked
    environment: Environment
    compatibility: tuple[Finding, ...]
    wiring: Examined
    seconds: float

    @property
    def grade(self) -> Grade:
        """The worst of all parts."""
        findings = (*self.environment.findings, *self.compatibility)
        return worst([self.wiring.verdict.grade, *(finding.grade for finding in findings)])

    @property
    def says(self) -> str:
        """The verdict in one sentence: the wiring's, unless something else is worse."""
        mine = self.wiring.verdict
        findings = (*self.compatibility, *self.environment.findings)
        if mine.grade is Grade.HEALTHY or mine.outcome is Outcome.UNEXAMINED:
            first = next((each for each in findings if each.grade is self.grade is not Grade.HEALTHY), None)
            if first is not None:
                return f"{first.name}: {first.says}"
        return mine.says


def check_up(
    asked: Asked, *, on_stage: Callable[[str], None] = lambda stage: None, clock: Clock | None = None
) -> Checkup:
    """Examine everything.

    Raises:
        ValueError: the target or the draft's folder cannot be opened, no prompt is usable, or the layers that are said
            to be known are none.
    """
    with Stopwatch(clock or Clock()) as watch:
        on_stage("loading")
        environment, files = look_around(asked.device), open_draft(asked.draft)
        target = open_target(asked.model, device=asked.device, dtype=asked.dtype)
        if asked.wiring.layers is not None:
            checked_layers(asked.wiring.layers, target.model.config.num_layers)
        found = compatibility(
            files,
            target.model.config,
            convention=asked.convention,
            has_template=target.template is not None,
            known=asked.wiring,
        )
        wiring = _examine(asked, files, target, on_stage)
    return Checkup(
        asked=asked, environment=environment, compatibility=tuple(found), wiring=wiring, seconds=watch.seconds
    )


def _examine(asked: Asked, files: DraftFiles, target: OpenTarget, on_stage: Callable[[str], None]) -> Examined:
    """Try the wiring, as far as the files let the draft be loaded."""
    layers = asked.wiring.layers or declared_layers(files, target.model.config, asked.convention)
    if layers is None:
        return _unexamined("its layer ids name no states; pass --draft-layers")
    try:
        loaded = load_patient(files, target.model, layers)
    except ValueError as error:
        return _unexamined(str(error))
    patient = rewired(loaded, asked.wiring)
    if patient.declared.map_reading is MapReading.FIRST is not asked.wiring.map_reading and not loaded.has_a_map:
        return _unexamined("its vocabulary map is lost (see d2t), so nothing that it says can be read")
    prompts = chosen_prompts(asked.entries, target, count=asked.num_prompts, longest=LONGEST_PROMPT)
    evidence = gather(target.model, prompts, max_tokens=asked.max_tokens, stop_ids=target.stop_ids, on_stage=on_stage)
    patient, evidence = plant(patient, evidence, asked.fault)
    found = search(patient, trial_of(patient, evidence), on_trial=on_stage)
    return Examined(
        verdict=judge(found, num_layers=target.model.config.num_layers),
        declared=patient.declared,
        search=found,
        num_prompts=len(prompts),
        num_tokens=evidence.num_answer_tokens,
    )


def _unexamined(reason: str) -> Examined:
    says = f"the wiring was not examined: {reason}"
    return Examined(verdict=Verdict(outcome=Outcome.UNEXAMINED, says=says))


def rewired(patient: Patient, known: DraftWiring) -> Patient:
    """The same draft, declared as a user says it is."""
    declared = patient.declared
    if known.norm_output is not None:
        declared = replace(declared, norm_output=known.norm_output)
    if known.norm_before_residual is not None:
        declared = replace(declared, norm_before_residual=known.norm_before_residual)
    if known.map_reading is not MapReading.OFFSETS:
        declared = replace(declared, map_reading=known.map_reading)
    return replace(patient, declared=declared)


def plant(patient: Patient, evidence: Evidence, fault: Fault | None) -> tuple[Patient, Evidence]:
    """Declare the draft wrongly on purpose; another target is this one with its hidden dimensions shuffled.

    Raises:
        ValueError: this draft cannot be declared wrongly so.
    """
    declared, num_layers = patient.declared, patient.choices.num_layers
    if fault is Fault.ANOTHER:
        return patient, evidence.shuffled()
    shift = {Fault.PLUS_ONE: 1, Fault.MINUS_ONE: -1}.get(fault) if fault is not None else None
    if shift is not None:
        declared = replace(declared, layers=tuple(layer + shift for layer in declared.layers))
        if not all(0 <= layer <= num_layers for layer in declared.layers):
            raise ValueError(f"--plant {fault.value if fault else ''} leads out of the target's layers; plant another")
    if fault is Fault.REVERSED:
        declared = replace(declared, layers=declared.layers[::-1])
    if fault is Fault.POST_NORM:
        declared = replace(declared, norm_output=not declared.norm_output)
    if fault is Fault.ZEROED:
        declared = replace(declared, map_reading=MapReading.FIRST)
    if fault is Fault.UNSHIFTED:
        declared = replace(declared, shifted=False)
    return replace(patient, declared=declared), evidence
