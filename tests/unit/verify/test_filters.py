"""Filters cut the distribution as Hugging Face's processors do."""

import pytest
import torch

from slipstream.config.sampling import SamplingParams
from slipstream.verify.distribution import draw, filtered_scores, sampling_rows

CASES = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 0.8, "top_p": 0.6},
    {"temperature": 1.3, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 12, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.0, "top_p": 0.01},
]


def theirs(logits: torch.Tensor, case: dict[str, float]) -> torch.Tensor:
    from transformers import generation

    scores = generation.TemperatureLogitsWarper(case["temperature"])(None, logits)
    if "top_k" in case:
        scores = generation.TopKLogitsWarper(int(case["top_k"]))(None, scores)
    if "top_p" in case:
        scores = generation.TopPLogitsWarper(case["top_p"])(None, scores)
    if "min_p" in case:
        scores = generation.MinPLogitsWarper(case["min_p"])(None, scores)
    return scores.softmax(-1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_probabilities_equal_transformers_warpers(case: dict[str, float]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 50) * 2
    params = SamplingParams(**case)  # type: ignore[arg-type]
    sampling = sampling_rows([params] * 6, [1] * 6, vocab_size=50, device=torch.device("cpu"))
    assert sampling is not None
    assert torch.allclose(filtered_scores(logits, sampling).softmax(-1), theirs(logits, case), atol=1e-6)


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 50)
    both = [SamplingParams(), SamplingParams(temperature=1.0)]
    device, positions = torch.device("cpu"), torch.tensor([4, 4])
    sampling = sampling_rows(both, [1, 1], vocab_size=50, device=device)
    alone = sampling_rows(both[1:], [1], vocab_size=50, device=device)
    drawn = draw(logits, sampling, positions)
    assert drawn[0] == logits[0].argmax()
    assert drawn[1] == draw(logits[1:], alone, positions[1:])[0]


def test_a_companions_filter_cuts_nothing_of_an_unfiltered_row() -> None:
    torch.manual_seed(0)
    logits = (torch.randn(2, 4000) * 8).repeat_interleave(8, dim=0)
    both = [SamplingParams(temperature=1.0)] * 8 + [SamplingParams(temperature=1.0, top_p=0.5)] * 8
    sampling = sampling_rows(both, [1] * 16, vocab_size=4000, device=torch.device("cpu"))
    assert sampling is not None
    assert torch.equal(filtered_scores(logits, sampling)[:8], logits[:8])


def test_all_greedy_batches_carry_no_sampling_at_all() -> None:
    assert sampling_rows([SamplingParams()], [1], vocab_size=50, device=torch.device("cpu")) is None
