"""Make a new draft for a target, from the target's own weights or at random.

Shape letters: D hidden, F feature width, C merged QKV.
"""

from collections.abc import Callable
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
SOFTEN = 0.25  # on the target's final norm: a draft that knows nothing yet must not be sure of anything


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
    if options.initial is not Initial.RANDOM:
        _copy_head(draft, target, ids_V)
    if options.initial is Initial.TARGET:
        _copy_layer(draft, target)
    draft.embed.weight = nn.Parameter(target.embed.weight.detach().float(), requires_grad=False)
    return draft


def _noise(generator: torch.Generator) -> Callable[[torch.Size], Tensor]:
    return lambda shape: torch.randn(shape, generator=generator) * NOISE


@torch.no_grad()
def _copy_head(draft: Eagle3Draft, target: Decoder, ids_V: Tensor) -> None:
    """The target's head rows and final norm, the norm softened."""
    draft.head.weight.copy_(target.head.weight[ids_V])
    draft.norm.weight.copy_(target.norm.weight * SOFTEN)


@torch.no_grad()
def _copy_layer(draft: Eagle3Draft, target: Decoder) -> None:
    """The last capture passed through, then the target's last layer where shapes agree."""
    size = target.config.hidden_size
    draft.fc.weight[:, -size:].copy_(torch.eye(size, device=draft.fc.weight.device))
    first = dict(draft.first.named_parameters())
    last = dict(target.layers[-1].named_parameters())
    _fill(first["hidden_norm.weight"], last["attention_norm.weight"])
    _fill(first["attention.qkv.weight"][:, size:], last["attention.qkv.weight"])
    for name in ("attention.output.weight", "mlp_norm.weight", "mlp.gate_up.weight", "mlp.down.weight"):
        _fill(first[name], last[name])


def _fill(own: Tensor, theirs: Tensor) -> None:
    if own.shape == theirs.shape:
        own.copy_(theirs)
