"""The pre-norm decoder that Llama, Qwen2, Qwen3 and Mistral share.

A captured hidden state is named "after k layers" (k in 0..N): the residual stream, before any norm.

Shape letters: T packed tokens, D hidden, V vocabulary, F = captures * D feature width.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slipstream.attention.interface import Attend
from slipstream.config.model import ModelConfig
from slipstream.layers.decoder_layer import DecoderLayer
from slipstream.layers.embedding import Embedding
from slipstream.layers.linear import Linear
from slipstream.layers.norm import RMSNorm
from slipstream.layers.rope import Rope
from slipstream.parallel.group import Group


class Hidden(NamedTuple):
    """What a target forward returns."""

    final_TD: Tensor  # after the final norm: feeds the head
    features_TF: Tensor | None  # captured residual streams, low to high; None when nothing is captured


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
