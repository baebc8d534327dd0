"""The EAGLE-3 draft (Li et al. 2025): one decoder layer over (next token's embedding, target features).

At position p it reads embed(token p + 1) and the fused target features of p; a further step reads its own hidden
state instead. Positions are the target's.

Shape letters: T packed tokens, D draft hidden, E target hidden, F = captures * E, V draft vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slipstream.attention.interface import Attend, RopeTable
from slipstream.config.draft import DraftConfig
from slipstream.layers.attention import Attention
from slipstream.layers.decoder_layer import DecoderLayer
from slipstream.layers.embedding import Embedding, Rows
from slipstream.layers.linear import Linear
from slipstream.layers.mlp import GatedMLP
from slipstream.layers.norm import RMSNorm
from slipstream.layers.products import TORCH, Products, Stream
from slipstream.layers.rope import Rope
from slipstream.parallel.cut import shard_of
from slipstream.parallel.group import Group, SoloGroup


class DraftHidden(NamedTuple):
    """What a draft forward returns."""

    normed_TD: Tensor  # feeds the head
    next_TD: Tensor  # feeds the next step


class FirstLayer(nn.Module):
    """The layer that reads an embedding beside a hidden state."""

    def __init__(self, config: DraftConfig, group: Group) -> None:
        super().__init__()
        body = config.body
        self.norm_before_residual = config.norm_before_residual
        self.embed_norm = RMSNorm(body.hidden_size, eps=body.rms_norm_eps)
        self.hidden_norm = RMSNorm(body.hidden_size, eps=body.rms_norm_eps)
        self.attention = Attention(
            index=0,
            input_size=2 * body.hidden_size,
            output_size=body.hidden_size,
            num_heads=body.num_heads,
            num_kv_heads=body.num_kv_heads,
            head_dim=body.head_dim,
            group=group,
            qkv_bias=body.qkv_bias,
            output_bias=body.output_bias,
            norm_eps=body.rms_norm_eps if body.qk_norm else None,
        )
        self.mlp_norm = RMSNorm(body.hidden_size, eps=body.rms_norm_eps)
        self.mlp = GatedMLP(body.hidden_size, body.intermediate_size, group=group)

    def forward(
        self, embed: Rows, hidden_TD: Tensor, attend: Attend, rope: RopeTable, by: Products, follows: RMSNorm
    ) -> Stream:
        """Map embeddings and hidden states [T, D] each to the residual stream; follows: the norm that reads it."""
        attention, mlp = self.attention, self.mlp
        both, normed_TD = by.pair((self.embed_norm, self.hidden_norm), embed, hidden_TD)
        mixed_TC = attend(attention, by.product(attention.qkv, both), rope)
        residual = Stream(normed_TD if self.norm_before_residual else hidden_TD)
        stream = by.added(residual, attention.output, mixed_TC, self.mlp_norm, keep=not attend.is_long)
        return by.added(stream, mlp.down, by.gated(self.mlp_norm, mlp.gate_up, stream), follows)


class Eagle3Draft(nn.Module):
    """The draft model; the embedding is handed in, since it is usually the target's."""

    def __init__(
        self, config: DraftConfig, *, group: Group, max_position: int, embedding_group: Group | None = None
    ) -> None:
        """max_position: the target's served context, whatever the draft's config says.

        embedding_group: what the embedding is cut over; whole on every rank if left out.
        """
        super().__init__()
        self.config, self.group = config, group
        self.products: Products = TORCH
        body = config.body
        self.embed = Embedding(body.vocab_size, body.hidden_size, group=embedding_group or SoloGroup())
        self.feature_norms = _feature_norms(config)
        self.fc = Linear(config.feature_size, body.hidden_size, bias=config.fc_bias)
        self.first = FirstLayer(config, group)
        self.rest = nn.ModuleList(DecoderLayer(body, index, group) for index in range(1, body.num_layers))
        self.norm = RMSNorm(body.hidden_size, eps=body.rms_norm_eps)
        self.shard = shard_of(config.draft_vocab_size, group)  # the draft ids that this rank scores
        self.head = Linear(body.hidden_size, len(self.shard.span))
        self.rope = Rope(
            body.rope, head_dim=body.head_dim, max_position=max_position, trained_position=body.max_position
        )

    def fuse(self, features_TF: Tensor) -> Tensor:
        """Target features [T, F] to the draft's hidden width [T, D], in the draft's dtype."""
        features_TF = features_TF.to(self.norm.weight.dtype)
        if self.config.fc_norm:
            chunks = features_TF.split(self.config.target_hidden_size, dim=-1)
            normed = [norm(chunk) for norm, chunk in zip(self.feature_norms, chunks, strict=True)]
            features_TF = torch.cat(normed, dim=-1)
        elif self.config.norm_before_fc:
            features_TF = self.feature_norms[0](features_TF)
        return self.products.product(self.fc, features_TF)

    def forward(self, tokens_T: Tensor, hidden_TD: Tensor, attend: Attend) -> DraftHidden:
        """One step: tokens of the *next* positions beside fused features or the previous step's `next_TD`."""
        norms = [*(layer.attention_norm for layer in self.rest), self.norm]
        rows, _ = self.embed.look_up(tokens_T)
        stream = self.first(rows, hidden_TD, attend, self.rope, self.products, norms[0])
        for index, layer in enumerate(self.rest):
            stream = layer(stream, attend, self.rope, self.products, norms[index + 1])
        normed_TD = self.products.norm(self.norm, stream)
        return DraftHidden(normed_TD, normed_TD if self.config.norm_output else stream.x_TD)

    def logits(self, normed_TD: Tensor) -> Tensor:
        """Scores [T, V / size] over this rank's part of the draft vocabulary in fp32."""
        return self.products.scores(self.head, normed_TD).float()


def _feature_norms(config: DraftConfig) -> nn.ModuleList:
    eps = config.body.rms_norm_eps
    if config.fc_norm:
        return nn.ModuleList(RMSNorm(config.target_hidden_size, eps=eps) for _ in config.captures)
    if config.norm_before_fc:
        return nn.ModuleList([RMSNorm(config.feature_size, eps=eps)])
    return nn.ModuleList()
