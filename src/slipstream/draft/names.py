"""Which checkpoint tensors make which parameter of a draft."""

from slipstream.config.draft import DraftConfig
from slipstream.weights.names import NameTable, layer_names, one, qkv_parts

EMBEDDINGS = ("embed_tokens.weight", "model.embed_tokens.weight")
LEGACY_NORMS = ("aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight")


def prefix_of(present: set[str]) -> str:
    """`midlayer` or `layers.0`, whichever the checkpoint uses for its first layer.

    Raises:
        ValueError: neither is there.
    """
    for prefix in ("midlayer", "layers.0"):
        if any(name.startswith(f"{prefix}.") for name in present):
            return prefix
    raise ValueError("the draft's checkpoint has neither midlayer.* nor layers.0.* tensors; is it an EAGLE-3 draft?")


def embedding_name(present: set[str]) -> str | None:
    """The checkpoint's own embedding table, if it has one."""
    return next((name for name in EMBEDDINGS if name in present), None)


def optional_names(present: set[str]) -> set[str]:
    """Tensors that are read apart from the table."""
    return present & {"d2t", "t2d"}


def draft_names(
    config: DraftConfig, prefix: str, *, own_embedding: str | None, own_head: bool, legacy_norms: bool = False
) -> NameTable:
    """The name table of a draft; `prefix` names its first layer, legacy_norms its feature norms as they once were."""
    body = config.body
    table = _first_layer(config, prefix)
    for index in range(1, body.num_layers):
        table |= layer_names(body, f"rest.{index - 1}", f"layers.{index}", body.hidden_size)
    table["fc.weight"] = one("fc.weight", body.hidden_size, config.feature_size)
    table["norm.weight"] = one("norm.weight", body.hidden_size)
    if config.fc_bias:
        table["fc.bias"] = one("fc.bias", body.hidden_size)
    if config.fc_norm:
        norms = LEGACY_NORMS if legacy_norms else [f"fc_norm.{index}.weight" for index in range(len(config.captures))]
        for index, name in enumerate(norms):
            table[f"feature_norms.{index}.weight"] = one(name, config.target_hidden_size)
    if config.norm_before_fc:
        table["feature_norms.0.weight"] = one("input_norm.weight", config.feature_size)
    if own_embedding:
        table["embed.weight"] = one(own_embedding, body.vocab_size, body.hidden_size)
    if own_head:
        table["head.weight"] = one("lm_head.weight", config.draft_vocab_size, body.hidden_size)
    return table


def _first_layer(config: DraftConfig, prefix: str) -> NameTable:
    body = config.body
    table = layer_names(body, "first", prefix, 2 * body.hidden_size)
    table["first.embed_norm.weight"] = table.pop("first.attention_norm.weight")
    table["first.hidden_norm.weight"] = one(f"{prefix}.hidden_norm.weight", body.hidden_size)
    table["first.attention.qkv.weight"] = qkv_parts(body, f"{prefix}.self_attn", "weight", 2 * body.hidden_size)
    return table
