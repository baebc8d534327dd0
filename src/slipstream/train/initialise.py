"""Make a new draft for a target, from the target's own weights or at random.

Shape letters: D hidden, F feature width, C merged QKV.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from slipstream.config.draft import DraftConfig, default_captures
from slipstream.config.model import ModelConfig
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.models.decoder import Decoder
from slipstream.parallel.group import SoloGroup
from slipstream.train.options import DraftOptions, Initial

NOISE = 0.02  # standard deviation of what the target has no weight for


def draft_shape(target: ModelConfig, options: DraftOptions) -> DraftConfig:
    """One Llama layer of the target's widths."""
    body = replace(
        target,
        architecture="LlamaForCausalLMEagle3",
        num_layers=1,
        intermediate_size=options.intermediate_size or target.intermediate_size,
        tie_embeddings=False,
        qkv_bias=False,
        output_bias=False,
        qk_norm=False,
        windows=(),
    )
    return DraftConfig(
        body=body,
        target_hidden_size=target.hidden_size,
        draft_vocab_size=options.vocab_size,
        captures=options.captures or default_captures(target.num_layers),
        norm_before_residual=options.norm_before_residual,
        fc_norm=options.fc_norm,
        norm_output=options.norm_output,
    )


def new_draft(target: Decoder, ids_V: Tensor, options: DraftOptions, *, max_position: int, seed: int) -> Eagle3Draft:
    """An fp32 draft on the target's device; its embedding is the target's table, frozen."""
    draft = Eagle3Draft(draft_shape(target.config, options), group=SoloGroup(), max_position=max_position)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in draft.named_parameters():
        fill = torch.ones if name.endswith("norm.weight") or "norms." in name else _noise(generator)
        parameter.data = fill(parameter.shape)
    device = target.embed.weight.device
    draft.to(device)
    if options.initial is Initial.TARGET:
        _copy_from_target(draft, target, ids_V)
    draft.embed.weight = nn.Parameter(target.embed.weight.detach().float(), requires_grad=False)
    return draft


def _noise(generator: torch.Generator):  # noqa: ANN202
    return lambda shape: torch.randn(shape, generator=generator) * NOISE


@torch.no_grad()
def _copy_from_target(draft: Eagle3Draft, target: Decoder, ids_V: Tensor) -> None:
    """The target's head rows and final norm; its last layer where shapes agree; the last capture passed through."""
    size, last, first = target.config.hidden_size, target.layers[-1], draft.first
    _fill(draft.head.weight, target.head.weight[ids_V])
    _fill(draft.norm.weight, target.norm.weight)
    _fill(draft.fc.weight[:, -size:], torch.eye(size, device=ids_V.device))
    _fill(first.hidden_norm.weight, last.attention_norm.weight)
    _fill(first.attention.qkv.weight[:, size:], last.attention.qkv.weight)
    _fill(first.attention.output.weight, last.attention.output.weight)
    _fill(first.mlp_norm.weight, last.mlp_norm.weight)
    _fill(first.mlp.gate_up.weight, last.mlp.gate_up.weight)
    _fill(first.mlp.down.weight, last.mlp.down.weight)


def _fill(own: Tensor, theirs: Tensor) -> None:
    if own.shape == theirs.shape:
        own.copy_(theirs)
