"""Targets as a planner sees them: parameters by part, from the shipped table, a config.json or two published sizes.

A part's parameters are read once a forward whatever the rows; routed experts are read once each that a row chose.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from slipstream.plan.hardware import plain, shipped

BF16 = 16.0
LIKELY_VOCAB, LIKELY_EXPERTS, LIKELY_CHOSEN = 150_000, 256, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Parameters of a target by part, and how many bits hold one."""

    name: str
    layers: int
    hidden: int
    vocab: int
    attention: float  # parameters of one layer that split over ranks
    replicated: float  # parameters of one layer that every rank holds whole: latent projections, router
    dense: float  # parameters of all dense MLPs together
    shared: float  # of one MoE layer: shared experts
    expert: float  # of one routed expert
    moe_layers: int
    experts: int
    experts_per_token: int
    kv_per_token: float  # numbers kept of a token, all layers
    kv_splits: bool  # over ranks; a latent cache does not
    ffn: int  # width of a dense MLP that a draft's would have
    tied: bool = False
    bits: float = BF16  # of attention, dense and shared weights
    routed_bits: float = BF16
    kv_bits: float = BF16
    approximate: bool = False

    @property
    def head(self) -> float:
        """Parameters of the language model head."""
        return float(self.vocab) * self.hidden

    @property
    def routed(self) -> float:
        """Parameters of all routed experts."""
        return self.moe_layers * self.experts * self.expert

    @property
    def total(self) -> float:
        """All parameters."""
        layered = self.layers * (self.attention + self.replicated) + self.moe_layers * self.shared
        return layered + self.dense + self.routed + self.head * (1 if self.tied else 2)

    @property
    def active(self) -> float:
        """Parameters that one token meets; the embedding is a look-up and not counted."""
        chosen = self.moe_layers * (self.experts_per_token * self.expert + self.shared)
        return self.layers * (self.attention + self.replicated) + self.dense + chosen + self.head

    @property
    def weight_bytes(self) -> float:
        """Bytes of the whole checkpoint."""
        others = self.total - self.routed - self.head * (1 if self.tied else 2)
        return (others * self.bits + self.routed * self.routed_bits + self.head * (1 if self.tied else 2) * BF16) / 8

    @property
    def is_moe(self) -> bool:
        return self.moe_layers > 0


def with_bits(shape: Shape, bits: float | None) -> Shape:
    """The same shape with its weights in so many bits, as such checkpoints are made.

    Below 8 bits only the routed experts of a mixture are quantised, the rest stays as it was; else everything but the
    head is.
    """
    if bits is None:
        return shape
    if shape.is_moe and bits < 8:
        return replace(shape, routed_bits=bits)
    return replace(shape, bits=bits, routed_bits=bits)


def named_model(name: str) -> Shape:
    """Look a shape up.

    Raises:
        ValueError: listing the nearest names.
    """
    found = find_model(name)
    if found is None:
        near = difflib.get_close_matches(plain(name), list(shipped("models")), n=4, cutoff=0.3)
        near = near or list(shipped("models"))
        raise ValueError(
            f"no model is called {name}; the nearest are {', '.join(near)}. Any config.json will do: --model PATH"
        )
    return found


def find_model(name: str) -> Shape | None:
    """The shape whose longest name stands in a text such as "org/Kimi-K2.5-MXFP4"."""
    padded = f"-{plain(name)}-"
    best: tuple[int, str] | None = None
    for key, table in shipped("models").items():
        for each in (key, *table.get("names", ())):
            if f"-{each}-" in padded and (best is None or len(each) > best[0]):
                best = (len(each), key)
    return None if best is None else from_table(best[1], shipped("models")[best[1]])


def from_table(name: str, table: Mapping[str, Any]) -> Shape:
    """Count a shape's parameters from widths; keys as in data/models.toml."""
    hidden, layers = int(table["hidden"]), int(table["layers"])
    experts = int(table.get("experts", 0))
    dense_layers = int(table.get("dense_layers", 0 if experts else layers))
    ffn = int(table.get("ffn", 0))
    moe_layers = layers - dense_layers if experts else 0
    attention, replicated, kv = _attention(table, hidden)
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        vocab=int(table["vocab"]),
        attention=attention,
        replicated=replicated + hidden * experts * moe_layers / layers,
        dense=3.0 * dense_layers * hidden * ffn,
        shared=3.0 * hidden * int(table.get("shared_ffn", 0)),
        expert=3.0 * hidden * int(table.get("expert_ffn", 0)),
        moe_layers=moe_layers,
        experts=experts,
        experts_per_token=int(table.get("experts_per_token", 0)),
        kv_per_token=kv * int(table.get("kv_layers", layers)),
        kv_splits="kv_rank" not in table,
        ffn=ffn or int(table.get("shared_ffn", 0)) or 3 * hidden,
        tied=bool(table.get("tied", False)),
        bits=float(table.get("bits", BF16)),
        routed_bits=float(table.get("routed_bits", table.get("bits", BF16))),
        approximate=bool(table.get("approximate", False)),
    )


def _attention(table: Mapping[str, Any], hidden: int) -> tuple[float, float, float]:
    """Parameters of a layer that split, that do not, and numbers a token leaves in its cache."""
    heads = int(table["heads"])
    if "kv_rank" not in table:
        width, kv_heads = int(table["head_width"]), int(table["kv_heads"])
        counted = hidden * width * (2 * heads + 2 * kv_heads)
        return float(table.get("attention_params", counted)), 0.0, 2.0 * kv_heads * width
    nope, rope, value = int(table["nope_width"]), int(table["rope_width"]), int(table["value_width"])
    kv_rank, q_rank = int(table["kv_rank"]), int(table.get("q_rank") or 0)
    queries = (q_rank or hidden) * heads * (nope + rope)
    split = queries + kv_rank * heads * (nope + value) + heads * value * hidden
    return float(split), float(hidden * q_rank + hidden * (kv_rank + rope)), float(kv_rank + rope)


def from_config(name: str, raw: Mapping[str, Any]) -> Shape:
    """Count a shape from a Hugging Face config.json: dense, mixtures and latent attention.

    Raises:
        ValueError: a width is missing.
    """
    raw = raw.get("text_config") or raw  # a multimodal checkpoint keeps its language model there
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    missing = [key for key in needed if raw.get(key) is None]
    if missing:
        raise ValueError(f"{name}: config.json lacks {', '.join(missing)}; is this a causal language model?")
    hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    experts = _first(raw, "n_routed_experts", "num_experts", "num_local_experts") or 0
    table: dict[str, Any] = {
        "layers": raw["num_hidden_layers"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": raw.get("num_key_value_heads") or heads,
        "head_width": raw.get("head_dim") or hidden // heads,
        "vocab": raw["vocab_size"],
        "ffn": raw.get("intermediate_size") or 0,
        "tied": raw.get("tie_word_embeddings", False),
    }
    if experts:
        table |= _mixture(raw, int(experts))
    if raw.get("kv_lora_rank"):
        keys = {"kv_rank": "kv_lora_rank", "q_rank": "q_lora_rank", "nope_width": "qk_nope_head_dim"}
        keys |= {"rope_width": "qk_rope_head_dim", "value_width": "v_head_dim"}
        table |= {ours: raw.get(theirs) or 0 for ours, theirs in keys.items()}
    return _quantised(from_table(name, table), raw)


def _mixture(raw: Mapping[str, Any], experts: int) -> dict[str, Any]:
    width = _first(raw, "moe_intermediate_size", "expert_ffn_hidden_size") or raw.get("intermediate_size") or 0
    shared = _first(raw, "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size") or width * (
        _first(raw, "n_shared_experts", "num_shared_experts") or 0
    )
    sparse_step = int(raw.get("decoder_sparse_step") or raw.get("interleave_moe_layer_step") or 1)
    layers = int(raw["num_hidden_layers"])
    dense = int(raw.get("first_k_dense_replace") or 0) or layers - layers // sparse_step
    return {
        "experts": experts,
        "experts_per_token": _first(raw, "num_experts_per_tok", "experts_per_token", "moe_topk") or 1,
        "expert_ffn": width,
        "shared_ffn": shared,
        "dense_layers": dense,
    }


def _quantised(shape: Shape, raw: Mapping[str, Any]) -> Shape:
    settings = raw.get("quantization_config") or {}
    method = str(settings.get("quant_method", ""))
    if not method:
        return shape
    groups = settings.get("config_groups") or {}
    stated = [group.get("weights", {}).get("num_bits") for group in groups.values() if isinstance(group, dict)]
    usual = {"mxfp4": 4.25, "awq": 4.25, "gptq": 4.25, "fp8": 8.0, "nvfp4": 4.5}.get(method, 8.0)
    bits = settings.get("bits") or next((each for each in stated if each), None) or usual
    return with_bits(shape, float(bits) + (0.5 if float(bits) == 4 else 0.0))  # a scale for each group of 32


def from_sizes(name: str, total_b: float, active_b: float | None) -> Shape:
    """A likely shape for a model of which only the sizes are known, 10^9 parameters.

    12 layers hidden^2 are the parameters of a dense body, and about 0.9 of a mixture's active ones; dense models are
    some 128 times as wide as deep, mixtures 80. A mixture has 256 experts of which 8 are chosen; what attention, head
    and experts leave of the active parameters is shared.
    """
    active_b = active_b or total_b
    mixture = active_b < 0.8 * total_b
    body, aspect = (0.9e9 * active_b, 80) if mixture else (1e9 * total_b, 128)
    layers = min(max(16, round((body / (12 * aspect**2)) ** (1 / 3))), 96)
    hidden = 128 * max(4, round(math.sqrt(body / (12 * layers)) / 128))
    heads = hidden // 128
    table: dict[str, Any] = {
        "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": min(8, heads), "head_width": 128,
        "vocab": LIKELY_VOCAB, "ffn": 3 * hidden,
    }  # fmt: skip
    if mixture:
        expert = (total_b - active_b) * 1e9 / (layers * (LIKELY_EXPERTS - LIKELY_CHOSEN)) / (3 * hidden)
        table |= {"experts": LIKELY_EXPERTS, "experts_per_token": LIKELY_CHOSEN, "expert_ffn": round(expert)}
        left = active_b * 1e9 - from_table(name, table).active
        table["shared_ffn"] = max(round(left / (layers * 3 * hidden)), 0)
    return replace(from_table(name, table), approximate=True)


def _first(raw: Mapping[str, Any], *keys: str) -> Any:
    return next((raw[key] for key in keys if raw.get(key)), None)
