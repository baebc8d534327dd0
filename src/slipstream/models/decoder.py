"""The pre-norm decoder that Llama, Qwen2, Qwen3 and Mistral share.

A captured hidden state is named "after k layers" (k in 0..N): the residual stream, before any norm.

Shape letters: T packed tokens, D hidden, V vocabulary, F = captures * D feature width; size: ranks of the group.
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
from slipstream.layers.products import TORCH, Products
from slipstream.layers.rope import Rope
from slipstream.parallel.cut import Shard, shard_of
from slipstream.parallel.group import Group


class Hidden(NamedTuple):
    """What a target forward returns."""

    final_TD: Tensor  # after the final norm: feeds the head
    features_TF: Tensor | None  # captured residual streams, low to high; None when nothing is captured
    tag_1D: Tensor | None = None  # what came with the tokens, summed over the ranks


class Decoder(nn.Module):
    """A causal language model whose attention backend is an argument."""

    def __init__(self, config: ModelConfig, *, group: Group, max_position: int) -> None:
        """max_position: the context to serve, in tokens; sizes the RoPE tables."""
        super().__init__()
        self.config = config
        self.captures: tuple[int, ...] = ()
        self.products: Products = TORCH
        self.group = group
        self.embed = Embedding(config.vocab_size, config.hidden_size, group=group)
        self.layers = nn.ModuleList(DecoderLayer(config, index, group) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.head = Linear(config.hidden_size, len(self.embed.span))
        if config.tie_embeddings:
            self.head.weight = self.embed.weight
        self.rope = Rope(
            config.rope, head_dim=config.head_dim, max_position=max_position, trained_position=config.max_position
        )

    def forward(self, tokens_T: Tensor, attend: Attend, tag_1D: Tensor | None = None) -> Hidden:
        """Run packed tokens; positions live in `attend`, which rotates queries and keys.

        tag_1D: a row that the ranks want summed; it rides on the embedding's own sum.
        """
        rows, tag_1D = self.embed.look_up(tokens_T, tag_1D)
        norms = [*(layer.attention_norm for layer in self.layers), self.norm]
        stream = self.products.begin(rows, norms[0])
        captured = [stream.x_TD] if 0 in self.captures else []
        for index, layer in enumerate(self.layers):
            stream = layer(stream, attend, self.rope, self.products, norms[index + 1])
            if index + 1 in self.captures:
                captured.append(stream.x_TD)
        final_TD = self.products.norm(self.norm, stream)
        return Hidden(final_TD, torch.cat(captured, dim=-1) if captured else None, tag_1D)

    @property
    def shard(self) -> Shard:
        """The part of the vocabulary that this rank's head scores."""
        return shard_of(self.config.vocab_size, self.group)

    def logits(self, final_TD: Tensor) -> Tensor:
        """Scores [T, V / size] in fp32 for rows of `final_TD`: of the ids in `shard`."""
        return self.products.scores(self.head, final_TD).float()

    def capture(self, captures: tuple[int, ...]) -> None:
        """Keep the residual stream after these many layers, ascending.

        Raises:
            ValueError: a count outside 0..N, or not ascending.
        """
        layers = self.config.num_layers
        if list(captures) != sorted(set(captures)) or any(not 0 <= k <= layers for k in captures):
            raise ValueError(f"captured layers must ascend within 0..{layers}, not {list(captures)}")
        self.captures = captures
