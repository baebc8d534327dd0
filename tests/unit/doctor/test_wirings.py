"""Each mistake in a draft's wiring is named, in a tiny world where a draft has learnt its target."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.config.draft import AS_DECLARED, CaptureConvention, MapReading
from slipstream.doctor.checkpoint import declared_layers, load_patient, open_draft
from slipstream.doctor.checkup import Fault, plant, rewired
from slipstream.doctor.compare import difference, t_quantile
from slipstream.doctor.evidence import capture
from slipstream.doctor.hypotheses import search, trial_of
from slipstream.doctor.score import Slots
from slipstream.doctor.unroll import unroll_slots
from slipstream.doctor.verdict import Outcome, judge
from slipstream.train.accept import draft_everywhere, total, walk
from slipstream.train.teacher import DraftVocabulary
from slipstream.train.unroll import unroll_forced
from tests.tiny_engine import CPU, TINY, tiny_target
from tests.unit.doctor.patients import Pair, answers, copied, examined, make_pair, tensor, with_ids

pytestmark = pytest.mark.slow  # ten seconds of training; run with make test-slow
RIGHT = (2, 4, 5)  # the default of 8 layers


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


def patient_of(pair: Pair, folder: Path | None = None):
    files = open_draft(folder or pair.folder)
    layers = declared_layers(files, TINY, CaptureConvention.AUTO)
    assert layers is not None
    return load_patient(files, pair.target, layers)


def judged(pair: Pair, patient, evidence=None):
    found = search(patient, trial_of(patient, evidence or pair.evidence))
    return judge(found, num_layers=TINY.num_layers)


def test_the_right_wiring_passes(pair: Pair) -> None:
    assert examined(pair, pair.folder).outcome is Outcome.RIGHT


@pytest.mark.parametrize(
    ("config", "cause", "flag"),
    [
        (with_ids(3, 5, 6), "layers +1", "--draft-layers 2,4,5"),
        (with_ids(1, 3, 4), "layers -1", "--draft-layers 2,4,5"),
        (with_ids(5, 4, 2), "layers reversed", "--draft-layers 2,4,5"),
        (with_ids(1, 5, 7), "other layers", "--draft-layers 2,4,5"),
        ({"norm_output": True}, "post-norm feedback", "--no-draft-norm-output"),
        ({"norm_before_residual": True}, "normed residual", "--no-draft-norm-before-residual"),
    ],
)
def test_a_mistake_in_the_config_is_named_with_its_flag(
    pair: Pair, tmp_path: Path, config: dict, cause: str, flag: str
) -> None:
    verdict = examined(pair, copied(pair.folder, tmp_path, config=config))
    assert verdict.outcome is Outcome.WRONG
    assert [(each.name, each.slipstream) for each in verdict.causes] == [(cause, flag)]


def test_columns_of_fc_in_reverse_are_named_and_no_key_of_other_engines_can_turn_them(
    pair: Pair, tmp_path: Path
) -> None:
    low, middle, high = tensor(pair.folder, "fc.weight").split(TINY.hidden_size, dim=1)
    turned = torch.cat((high, middle, low), dim=1).contiguous()
    verdict = examined(pair, copied(pair.folder, tmp_path, tensors={"fc.weight": turned}))
    (cause,) = verdict.causes
    assert (cause.name, cause.slipstream) == ("layers reversed", "--draft-layers 5,4,2")
    assert "reorder the column blocks" in cause.vllm


def test_each_mistake_with_the_vocabulary_map_is_named(pair: Pair, tmp_path: Path) -> None:
    d2t = tensor(pair.folder, "d2t")
    ids = d2t + torch.arange(len(d2t))
    zeroed = examined(pair, copied(pair.folder, tmp_path / "zeroed", tensors={"d2t": torch.zeros_like(d2t)}))
    assert [(each.name, each.slipstream) for each in zeroed.causes] == [("d2t zeroed", "--draft-d2t mask")]
    assert not patient_of(pair, copied(tmp_path / "zeroed", tmp_path / "lost", tensors={"t2d": None})).has_a_map
    missing = examined(pair, copied(pair.folder, tmp_path / "missing", tensors={"d2t": None}))
    assert [each.name for each in missing.causes] == ["d2t zeroed"]
    as_ids = examined(pair, copied(pair.folder, tmp_path / "ids", tensors={"d2t": ids}))
    assert [(each.name, each.slipstream) for each in as_ids.causes] == [("d2t as ids", "--draft-d2t ids")]


def test_two_mistakes_are_named_one_after_the_other(pair: Pair, tmp_path: Path) -> None:
    verdict = examined(pair, copied(pair.folder, tmp_path, config={**with_ids(3, 5, 6), "norm_output": True}))
    assert {each.name for each in verdict.causes} == {"layers +1", "post-norm feedback"}


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault.PLUS_ONE, "layers +1"),
        (Fault.MINUS_ONE, "layers -1"),
        (Fault.REVERSED, "layers reversed"),
        (Fault.POST_NORM, "post-norm feedback"),
        (Fault.ZEROED, "d2t zeroed"),
        (Fault.UNSHIFTED, "unshifted tokens"),
    ],
)
def test_a_planted_mistake_is_named(pair: Pair, fault: Fault, cause: str) -> None:
    patient, evidence = plant(patient_of(pair), pair.evidence, fault)
    verdict = judged(pair, patient, evidence)
    assert [each.name for each in verdict.causes] == [cause]


def test_a_draft_of_another_target_belongs_to_none_of_the_wirings(pair: Pair) -> None:
    other = tiny_target(seed=7)
    stranger = Pair(target=other, folder=pair.folder, evidence=capture(other, answers(other)))
    assert examined(stranger, pair.folder).outcome is Outcome.FOREIGN


def test_little_text_is_no_ground_for_a_verdict(pair: Pair) -> None:
    thin = capture(pair.target, answers(pair.target)[:1])
    verdict = judged(pair, patient_of(pair), thin)
    assert verdict.outcome in (Outcome.INCONCLUSIVE, Outcome.FOREIGN)


def test_the_slots_give_the_whole_unrolls_numbers(pair: Pair) -> None:
    evidence, patient = pair.evidence, patient_of(pair)
    slots = torch.from_numpy(Slots.of(evidence, 4).slots_BA)
    features = evidence.features(RIGHT)
    rows = (torch.arange(len(slots))[:, None] * evidence.tokens_BT.shape[1] + slots).flatten()
    with torch.no_grad():
        mine = unroll_slots(patient.draft, evidence.tokens_BT, features, slots, shift=1, steps=4)
        theirs = unroll_forced(patient.draft, evidence.tokens_BT, features, 4)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other[rows], rtol=1e-4, atol=1e-4)


def test_the_accept_length_is_the_trainers_and_so_that_of_serving(pair: Pair) -> None:
    patient, said = patient_of(pair), pair.evidence.conversations
    found = trial_of(patient, pair.evidence)(patient.declared, False)
    ids = patient.map_of(patient.declared).numpy()
    vocabulary = DraftVocabulary.of(ids, target_vocab_size=TINY.vocab_size, device=CPU)
    pair.target.capture(RIGHT)
    drafted = draft_everywhere(patient.draft, pair.target, said, np.arange(len(said)), vocabulary, steps=4)
    theirs = total([walk(said.tokens(i), int(said.prompts_C[i]), drafted[i]) for i in range(len(said))], 4)
    assert found is not None
    assert found.walk == theirs
    assert theirs.accept_length > 1.3


def test_the_interval_of_a_difference_widens_with_fewer_prompts(pair: Pair) -> None:
    patient = patient_of(pair)
    trial = trial_of(patient, pair.evidence)
    one = trial(replace(patient.declared, layers=(3, 5, 6)), False)
    right = trial(patient.declared, False)
    assert one is not None
    assert right is not None
    whole = difference(one, right)
    keep = one.prompts_C < 4
    fewer = difference(
        replace(one, losses_C=one.losses_C[keep], prompts_C=one.prompts_C[keep]),
        replace(one, losses_C=right.losses_C[keep], prompts_C=one.prompts_C[keep]),
    )
    assert whole.worse
    assert fewer.high - fewer.low > whole.high - whole.low


@pytest.mark.parametrize(("freedom", "expected"), [(1, 63.657), (2, 9.925), (5, 4.032), (11, 3.106), (30, 2.750)])
def test_students_t_is_that_of_the_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.995, freedom) == pytest.approx(expected, rel=0.015)


def test_what_a_user_knows_better_is_the_declared_wiring(pair: Pair) -> None:
    known = replace(AS_DECLARED, norm_output=True, map_reading=MapReading.MASK)
    declared = rewired(patient_of(pair), known).declared
    assert (declared.norm_output, declared.map_reading, declared.layers) == (True, MapReading.MASK, RIGHT)
