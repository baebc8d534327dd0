"""The pre-norm decoder that Llama, Qwen2, Qwen3 and Mistral share.

A captured hidden state is named "after k layers" (k in 0..N): the residual stream, before any norm.

Shape letters: T packed tokens, D hidden, V vocabulary, F = captures * D feature width.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slipstream.attention.interface import Attend, RopeTable
from slipstream.config.model import ModelConfig
from slipstream.layers.attention import Attention
from slipstream.layers.embedding import Embedding
from slipstream.layers.linear import Linear
from slipstream.layers.mlp import GatedMLP
from slipstream.layers.norm import RMSNorm
from slipstream.layers.rope import Rope
from slipstream.parallel.group import Group


class Hidden(NamedTuple):
    """What a target forward returns."""

    final_TD: Tensor  # after the final norm: feeds the head
    features_TF: Tensor | None  # captured residual streams, low to high; None when nothing is captured


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, index: int, group: Group) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention = Attention(
            index=index,
            input_size=config.hidden_size,
            output_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            group=group,
            qkv_bias=config.qkv_bias,
            output_bias=config.output_bias,
            norm_eps=config.rms_norm_eps if config.qk_norm else None,
            window=config.window(index),
        )
        self.mlp_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, group=group)

    def forward(self, x_TD: Tensor, attend: Attend, rope: RopeTable) -> Tensor:
        """Map the residual stream [T, D] through one layer."""
        x_TD = x_TD + self.attention(self.attention_norm(x_TD), attend, rope)
        return x_TD + self.mlp(self.mlp_norm(x_TD))


class Decoder(nn.Module):
    """A causal language model whose attention backend is an argument."""

    def __init__(self, config: ModelConfig, *, group: Group, max_position: int) -> None:
        """max_position: the context to serve, in tokens; sizes the RoPE tables."""
        super().__init__()
        self.config = config
        self.captures: tuple[int, ...] = ()
        self.embed = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, index, group) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.head = Linear(config.hidden_size, config.vocab_size)
        if config.tie_embeddings:
            self.head.weight = self.embed.weight
        self.rope = Rope(
            config.rope, head_dim=config.head_dim, max_position=max_position, trained_position=config.max_position
        )

    def forward(self, tokens_T: Tensor, attend: Attend) -> Hidden:
        """Run packed tokens; positions live in `attend`, which rotates queries and keys."""
        x_TD = self.embed(tokens_T)
        captured = [x_TD] if 0 in self.captures else []
        for index, layer in enumerate(self.layers):
            x_TD = layer(x_TD, attend, self.rope)
            if index + 1 in self.captures:
                captured.append(x_TD)
        return Hidden(self.norm(x_TD), torch.cat(captured, dim=-1) if captured else None)

    def logits(self, final_TD: Tensor) -> Tensor:
        """Scores [T, V] in fp32 for rows of `final_TD`."""
        return self.head(final_TD).float()

    def capture(self, captures: tuple[int, ...]) -> None:
        """Keep the residual stream after these many layers, ascending.

        Raises:
            ValueError: a count outside 0..N, or not ascending.
        """
        layers = self.config.num_layers
        if list(captures) != sorted(set(captures)) or any(not 0 <= k <= layers for k in captures):
            raise ValueError(f"captured layers must ascend within 0..{layers}, not {list(captures)}")
        self.captures = captures
