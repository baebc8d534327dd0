"""Sampled joints follow the target's exact distribution; broken acceptance, noise or filters are caught."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from slipstream.attention.dense import DenseAttend
from slipstream.attention.tree import TokenTree
from slipstream.config.draft import DraftConfig
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.draft.checkpoint import LoadedDraft
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.models.decoder import Decoder
from slipstream.parallel.group import SoloGroup
from slipstream.verify.accept import Accepted, accept
from tests.tiny_engine import TINY, run_all, tiny_engine, tiny_target

VOCAB, PROMPT, LENGTH = 6, [4, 1], 3
SAMPLES = 20_000
PARAMS = SamplingParams(max_tokens=LENGTH, temperature=0.8, top_k=5, top_p=0.93, seed=1)
CHAIN, TREE = speculation(2), speculation(2, 2, 5)

SHAPE = replace(
    TINY, vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8
)


@pytest.fixture(scope="module")
def target() -> Decoder:
    return tiny_target(SHAPE, seed=5, scale=8.0)


def make_draft(target: Decoder, seed: int, *, like_target: bool) -> LoadedDraft:
    """A draft with the target's head, or one whose head belongs to another model ("trained on other text")."""
    body = replace(SHAPE, num_layers=1)
    config = DraftConfig(body=body, target_hidden_size=16, draft_vocab_size=VOCAB, captures=(0, 1))
    model = Eagle3Draft(config, group=SoloGroup(), max_position=512)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
    model.embed.weight.data = target.embed.weight.data
    if like_target:
        model.head.weight.data = target.head.weight.data.clone()
    return LoadedDraft(model=model.eval(), target_ids=torch.arange(VOCAB), shares_embedding=True, convention="auto")


def exact_joint(target: Decoder) -> dict[tuple[int, ...], float]:
    """P(three tokens), from one forward a prefix and a filter written anew."""
    joint: dict[tuple[int, ...], float] = {}
    for tokens in itertools.product(range(VOCAB), repeat=LENGTH):
        probability = 1.0
        for count in range(LENGTH):
            probability *= next_probabilities(target, tokens[:count])[tokens[count]]
        joint[tokens] = probability
    return joint


def next_probabilities(target: Decoder, so_far: tuple[int, ...]) -> list[float]:
    prefix = torch.tensor([*PROMPT, *so_far])
    with torch.inference_mode():
        logits = target.logits(target(prefix, DenseAttend(1, len(prefix), device=prefix.device)).final_TD[-1:])[0]
    order = logits.argsort(descending=True)[: PARAMS.top_k].tolist()
    weights = {token: math.exp(logits[token].item() / PARAMS.temperature) for token in order}
    total, mass, kept = sum(weights.values()), 0.0, {}
    for token in order:
        if mass >= PARAMS.top_p:
            break
        kept[token] = weights[token]
        mass += weights[token] / total
    return [kept.get(token, 0.0) / sum(kept.values()) for token in range(VOCAB)]


def sampled_joint(target: Decoder, draft: LoadedDraft, shape: Speculation, samples: int) -> Counter[tuple[int, ...]]:
    engine = tiny_engine(shape, target=unpacked(target), draft=draft, max_batch=250)
    answers = run_all(engine, [PROMPT] * samples, PARAMS)
    assert sum(each.statistics.accepted for each in answers) > 0
    return Counter(each.tokens for each in answers)


def unpacked(target: Decoder) -> Decoder:
    """A copy, since an engine packs the weights it is given."""
    copy = tiny_target(SHAPE, seed=5, scale=8.0)
    copy.load_state_dict(target.state_dict())
    return copy


def surprise(counts: Counter[tuple[int, ...]], joint: dict[tuple[int, ...], float]) -> float:
    """Chi-square of the counts in standard deviations of its own distribution; rare cells are pooled."""
    total, statistic, cells, pooled, pooled_expected = sum(counts.values()), 0.0, 0, 0, 0.0
    for tokens, probability in joint.items():
        expected = probability * total
        if expected < 5:
            pooled, pooled_expected = pooled + counts[tokens], pooled_expected + expected
            continue
        statistic += (counts[tokens] - expected) ** 2 / expected
        cells += 1
    if pooled_expected > 0:
        statistic += (pooled - pooled_expected) ** 2 / pooled_expected
        cells += 1
    elif pooled:
        return math.inf
    return (statistic - (cells - 1)) / math.sqrt(2 * (cells - 1))


BOUND = 4.0  # standard deviations


@pytest.mark.parametrize(
    ("like_target", "samples"), [(True, SAMPLES), (False, 6_000)], ids=["own draft", "foreign draft"]
)
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_three_token_joints_follow_the_exact_distribution(
    target: Decoder, shape: Speculation, like_target: bool, samples: int
) -> None:
    counts = sampled_joint(target, make_draft(target, 3, like_target=like_target), shape, samples)
    assert surprise(counts, exact_joint(target)) < BOUND


def always_accept(tree: TokenTree, targets_SN: torch.Tensor, limits_S: torch.Tensor) -> Accepted:
    parents = tree.parents_SN.clamp(min=0)
    agreeing = targets_SN.clone()
    agreeing.scatter_(1, parents[:, 1:], tree.tokens_SN[:, 1:])
    return accept(tree, agreeing, limits_S)


def reused_noise(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def noise(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return original(seeds, torch.zeros_like(positions), tokens)

    return noise


def unfiltered(logits: torch.Tensor, sampling: object) -> torch.Tensor:
    return logits / PARAMS.temperature


@pytest.mark.parametrize("mutant", ["acceptance always true", "noise reused", "unfiltered p"])
def test_a_mutant_is_caught(target: Decoder, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    from slipstream.kernels.noise import gumbel_noise

    if mutant == "acceptance always true":
        monkeypatch.setattr("slipstream.runner.cycle.accept", always_accept)
    if mutant == "noise reused":
        monkeypatch.setattr("slipstream.verify.distribution.gumbel_noise", reused_noise(gumbel_noise))
    if mutant == "unfiltered p":
        monkeypatch.setattr("slipstream.verify.distribution.filtered_scores", unfiltered)
    counts = sampled_joint(target, make_draft(target, 3, like_target=True), CHAIN, SAMPLES // 8)
    assert surprise(counts, exact_joint(target)) > 2 * BOUND
