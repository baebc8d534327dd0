"""One plain step of a Llama-like model by the kernels, on random weights: what a chain of products takes.

Shape letters: T rows, D hidden, O outputs, S sequences, R rows of each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.bench.kernel_attention import PAGE, pool_of, scattered_pages
from slipstream.bench.kernel_checks import EPS, rows_of
from slipstream.config.draft import DraftConfig
from slipstream.config.model import ModelConfig
from slipstream.kernels.head import choose_tokens
from slipstream.kernels.keys import Keys
from slipstream.kernels.norms import add_norm, add_squares
from slipstream.kernels.paged import has_many_parts, paged_attention
from slipstream.kernels.plans import Plan, Workspace
from slipstream.kernels.qkv import rotate_and_store
from slipstream.kernels.skinny import Ready, Rms, skinny_linear

NAMES = ("qkv", "o", "gate_up", "down", "head")


def weight_shapes(model: ModelConfig, ranks: int = 1) -> dict[str, tuple[int, int]]:
    """[O, D] of each product of one rank."""
    wide, narrow = model.num_heads * model.head_dim // ranks, model.num_kv_heads * model.head_dim // ranks
    inner = model.intermediate_size // ranks
    return {
        "qkv": (wide + 2 * narrow, model.hidden_size),
        "o": (model.hidden_size, wide),
        "gate_up": (2 * inner, model.hidden_size),
        "down": (model.hidden_size, inner),
        "head": (model.vocab_size // ranks, model.hidden_size),
    }


def draft_shapes(draft: DraftConfig) -> dict[str, tuple[int, int]]:
    """[O, D] of each product of a draft on one rank."""
    body = draft.body
    shapes = weight_shapes(body)
    (wide, _), (_, inner) = shapes["qkv"], shapes["o"]
    return {
        "draft qkv": (wide, 2 * body.hidden_size),
        "draft o": (body.hidden_size, inner),
        "draft gate_up": shapes["gate_up"],
        "draft down": shapes["down"],
        "draft fc": (body.hidden_size, draft.feature_size),
        "draft head": (draft.draft_vocab_size, body.hidden_size),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWeights:
    """A model's weights, random: layers of (qkv, o, gate_up, down), then the head."""

    model: ModelConfig
    layers: list[dict[str, Tensor]]
    head: Tensor
    norm: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes that one step reads."""
        return sum(w.nbytes for layer in self.layers for w in layer.values()) + self.head.nbytes


def random_weights(model: ModelConfig, ranks: int = 1) -> StepWeights:
    """Weights of one rank."""
    shapes = weight_shapes(model, ranks)

    def draw(shape: tuple[int, int]) -> Tensor:
        return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(std=shape[1] ** -0.5)

    return StepWeights(
        model=model,
        layers=[{name: draw(shapes[name]) for name in NAMES[:-1]} for _ in range(model.num_layers)],
        head=draw(shapes["head"]),
        norm=1 + rows_of(1, model.hidden_size, scale=0.1)[0],
    )


def cublas_chain(weights: StepWeights, num_rows: int) -> Callable[[], None]:
    """The products alone, by torch."""
    inputs = {w.shape[1]: rows_of(num_rows, w.shape[1]) for w in (*weights.layers[0].values(), weights.head)}

    def work() -> None:
        for layer in weights.layers:
            for w in layer.values():
                F.linear(inputs[w.shape[1]], w)
        F.linear(inputs[weights.head.shape[1]], weights.head)

    return work


def product_chain(
    weights: StepWeights, plans: dict[str, Plan], space: Workspace, num_rows: int, *, pdl: bool
) -> Callable[[], None]:
    """The products alone, by the skinny kernel."""
    inputs = {w.shape[1]: rows_of(num_rows, w.shape[1]) for w in (*weights.layers[0].values(), weights.head)}

    def work() -> None:
        for layer in weights.layers:
            for name, w in layer.items():
                gated = name == "gate_up"
                skinny_linear(inputs[w.shape[1]], w, space=space, plan=plans[name], gated=gated, pdl=pdl)
        choose_tokens(inputs[weights.head.shape[1]], weights.head, plan=plans["head"], pdl=pdl)

    return work


def whole_step(
    weights: StepWeights, plans: dict[str, Plan], space: Workspace, keys: Keys, *, pdl: bool
) -> Callable[[], Tensor]:
    """A whole forward of the rows of `keys`, fused as far as the kernels go; gives the tokens."""
    model = weights.model
    num_heads = weights.layers[0]["o"].shape[1] // model.head_dim
    num_kv_heads = num_heads * model.num_kv_heads // model.num_heads
    num_slots = (int(keys.pages.max()) + 1) * keys.page
    pools = [pool_of(num_slots, num_kv_heads, model.head_dim) for _ in weights.layers]
    stream = rows_of(keys.newest.numel(), model.hidden_size)
    table = torch.randn(32_768, model.head_dim // 2, device="cuda")
    keep = not has_many_parts(keys)

    def work() -> Tensor:
        x, squares, scaled = add_squares(stream, weights.norm, pdl=pdl)
        for layer, pool in zip(weights.layers, pools, strict=True):
            rms = Rms(squares=squares, eps=EPS)
            qkv = skinny_linear(scaled, layer["qkv"], space=space, plan=plans["qkv"], rms=rms, pdl=pdl)
            queries = rotate_and_store(qkv, keys, (table, table), pool, num_heads=num_heads, pdl=pdl)
            mixed = paged_attention(queries, *pool, keys, pdl=pdl).view(len(stream), -1)
            x, squares, scaled = _added(x, mixed, layer["o"], weights.norm, plans["o"], space, keep=keep, pdl=pdl)
            rms = Rms(squares=squares, eps=EPS)
            inner = skinny_linear(
                scaled, layer["gate_up"], space=space, plan=plans["gate_up"], rms=rms, gated=True, pdl=pdl
            )
            x, squares, scaled = _added(x, inner, layer["down"], weights.norm, plans["down"], space, pdl=pdl)
        _, normed = add_norm(x, None, weights.norm, eps=EPS, pdl=pdl)
        return choose_tokens(normed, weights.head, plan=plans["head"], pdl=pdl).ids

    return work


def _added(
    x: Tensor, delta: Tensor, w: Tensor, norm: Tensor, plan: Plan, space: Workspace, *, keep: bool = True, pdl: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    squares = torch.empty(x.shape[0], -(-w.shape[0] // plan.block_out), device=x.device, dtype=torch.float32)
    ready = Ready(weight=norm, squares=squares, scaled=torch.empty_like(x))
    total = skinny_linear(delta, w, space=space, plan=plan, residual=x, ready=ready, keep=keep, pdl=pdl)
    return total, squares, ready.scaled


def decode_keys(num_sequences: int, num_rows: int, context: int) -> Keys:
    """Keys of a decode or verify forward: every sequence has `context` positions before its rows."""
    pages = scattered_pages(num_sequences, -(-(context + num_rows) // PAGE))
    newest = (context + torch.arange(num_rows, device="cuda")).expand(num_sequences, -1).contiguous()
    return Keys(pages=pages, page=PAGE, newest=newest, most=context + num_rows)
