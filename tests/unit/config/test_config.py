"""Settings contradict themselves in one clear sentence."""

from dataclasses import replace
from typing import Any

import pytest

from slipstream.config.engine import EngineConfig
from slipstream.config.hf import model_config
from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import PLAIN, Speculation, shrink, speculation


def test_a_chains_draft_tokens_are_its_steps() -> None:
    assert speculation(4) == Speculation(steps=4, topk=1, draft_tokens=4)
    assert speculation(0) == PLAIN


SHAPES = [
    ((-1,), "between 0"),
    ((17,), "between 0"),
    ((4, 1, 5), "contradicts steps"),
    ((4, 0), "topk must be between 1"),
    ((1, 256, 8), "not 256"),
    ((0, 2), "needs at least one step"),
    ((2, 2, 1), "between steps"),
    ((2, 2, 7), "the 6 nodes"),
]


@pytest.mark.parametrize(("numbers", "reason"), SHAPES, ids=str)
def test_impossible_shapes_are_refused(numbers: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        speculation(*numbers)


def test_a_shape_shrinks_to_what_still_fits() -> None:
    assert shrink(speculation(4), 2) == speculation(2)
    assert shrink(speculation(4), 0) == PLAIN
    assert shrink(speculation(4), 9) == speculation(4)
    assert shrink(speculation(3, 4, 20), 1) == speculation(1, 4, 4)


PARAMS = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": 1e-40}, "use 0"),
    ({"top_p": 0.0}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"top_k": 2**70}, "top_k"),
    ({"min_p": 1.0}, "min_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"seed": -5}, "seed"),
    ({"stop": "END"}, "tuple of strings"),
    ({"stop": ("",)}, "empty"),
    ({"n": 0}, "n must be"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "max_tokens, 8"),
    ({"presence_penalty": 2.1}, "presence_penalty must be between -2 and 2"),
    ({"frequency_penalty": float("nan")}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty must be above 0"),
    ({"repetition_penalty": float("inf")}, "repetition_penalty"),
    ({"logit_bias": {3: 101}}, "token 3 must be between"),
    ({"logit_bias": {3: float("nan")}}, "token 3"),
    ({"logit_bias": {"3": 1.0}}, "whole numbers"),
    ({"logit_bias": {-3: 1.0}}, "whole numbers"),
    ({"bad_words": "damn"}, "tuple of strings"),
    ({"bad_words": (" ",)}, "bad word is empty"),
    ({"bad_word_ids": ((),)}, "bad word is empty"),
    ({"logit_bias": {2**31: 1}}, "logit_bias has 2147483648 where a token id belongs"),
    ({"stop_ids": (2, -1)}, "stop_ids has -1 where a token id belongs; ids are whole numbers from 0 to 2147483647"),
    ({"stop_ids": (2**70,)}, "stop_ids has 1180591620717411303424 where a token id belongs"),
    ({"stop_ids": (True,)}, "stop_ids has True where"),
    ({"bad_word_ids": ((1, 2**63),)}, "bad_word_ids has 9223372036854775808 where"),
    ({"logprobs": -1}, "logprobs must be between 0 and 20"),
    ({"logprobs": 21}, "logprobs must be between 0 and 20"),
]


@pytest.mark.parametrize(("values", "reason"), PARAMS, ids=str)
def test_sampling_values_out_of_range_are_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SamplingParams(**values)


def test_a_bias_is_kept_by_id_and_parameters_stay_hashable() -> None:
    params = SamplingParams(logit_bias={9: 1, 3: -2.5})
    assert params.bias == params.logit_bias == ((3, -2.5), (9, 1))
    assert params == SamplingParams(logit_bias=((9, 1), (3, -2.5))) == replace(params, max_tokens=256)
    assert len({params, SamplingParams()}) == 2


RAW = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def test_sliding_windows_apply_where_each_family_says() -> None:
    def windows(model_type: str, **more: Any) -> tuple[int | None, ...]:
        return model_config({**RAW, "model_type": model_type, "sliding_window": 8, **more}).windows

    assert windows("mistral") == (8, 8, 8, 8)
    assert windows("qwen2") == ()
    assert windows("qwen2", use_sliding_window=True, max_window_layers=3) == (None, None, None, 8)
    kinds = ["full_attention", "sliding_attention"] * 2
    assert windows("qwen3", layer_types=kinds) == (None, 8, None, 8)
    assert windows("llama") == ()


CONFIGS = [
    ({"architectures": None}, "names no architecture"),
    ({"hidden_size": None}, "lacks 'hidden_size'"),
    ({"hidden_act": "gelu"}, "gelu"),
    ({"mlp_bias": True}, "mlp_bias"),
    ({"quantization_config": {"quant_method": "fp8"}}, "fp8 quantised"),
]


@pytest.mark.parametrize(("values", "reason"), CONFIGS, ids=str)
def test_configs_that_cannot_be_honoured_are_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        model_config({**RAW, **values})


def test_eos_ids_come_as_a_number_or_a_list() -> None:
    assert model_config({**RAW, "eos_token_id": 2}).eos_ids == (2,)
    assert model_config({**RAW, "eos_token_id": [2, 7]}).eos_ids == (2, 7)


@pytest.mark.parametrize("sizes", [(4, 2), (2, 2), (0, 1)])
def test_sizes_that_do_not_ascend_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="graph_sizes ascend"):
        EngineConfig(speculation=PLAIN, max_len=8, graph_sizes=sizes)
