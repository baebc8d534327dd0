"""Which checkpoint tensors make which of our parameters.

A parameter is one or more checkpoint tensors stacked along dim 0 (merged QKV, merged gate and up).
"""

from dataclasses import dataclass

from slipstream.config.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCut:
    """Elements [start, stop) along one dimension of a checkpoint tensor."""

    dim: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One checkpoint tensor, the shape it must have and what is read of it."""

    name: str
    shape: tuple[int, ...]  # of the whole tensor
    cut: PartCut | None = None  # a rank's share; None = all of it

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of what is read."""
        if self.cut is None:
            return self.shape
        sizes = list(self.shape)
        sizes[self.cut.dim] = self.cut.stop - self.cut.start
        return tuple(sizes)


NameTable = dict[str, tuple[Part, ...]]  # our parameter -> its parts, stacked

IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "t2d")


def one(name: str, *shape: int) -> tuple[Part, ...]:
    """A parameter that is a single checkpoint tensor."""
    return (Part(name=name, shape=shape),)


def decoder_names(config: ModelConfig) -> NameTable:
    """The table of Llama, Mistral, Qwen2 and Qwen3 checkpoints."""
    table = one_layer_of_all(config)
    table["embed.weight"] = one("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    table["norm.weight"] = one("model.norm.weight", config.hidden_size)
    if not config.tie_embeddings:
        table["head.weight"] = one("lm_head.weight", config.vocab_size, config.hidden_size)
    return table


def one_layer_of_all(config: ModelConfig) -> NameTable:
    """The entries of every decoder layer."""
    table: NameTable = {}
    for index in range(config.num_layers):
        table |= layer_names(config, f"layers.{index}", f"model.layers.{index}", config.hidden_size)
    return table


def layer_names(config: ModelConfig, ours: str, theirs: str, input_size: int) -> NameTable:
    """The entries of one decoder layer; input_size: what its QKV reads."""
    hidden, inner = config.hidden_size, config.intermediate_size
    table = {
        f"{ours}.attention.output.weight": one(f"{theirs}.self_attn.o_proj.weight", hidden, query_size(config)),
        f"{ours}.attention.qkv.weight": qkv_parts(config, f"{theirs}.self_attn", "weight", input_size),
        f"{ours}.attention_norm.weight": one(f"{theirs}.input_layernorm.weight", hidden),
        f"{ours}.mlp_norm.weight": one(f"{theirs}.post_attention_layernorm.weight", hidden),
        f"{ours}.mlp.gate_up.weight": (
            Part(name=f"{theirs}.mlp.gate_proj.weight", shape=(inner, hidden)),
            Part(name=f"{theirs}.mlp.up_proj.weight", shape=(inner, hidden)),
        ),
        f"{ours}.mlp.down.weight": one(f"{theirs}.mlp.down_proj.weight", hidden, inner),
    }
    if config.qkv_bias:
        table[f"{ours}.attention.qkv.bias"] = qkv_parts(config, f"{theirs}.self_attn", "bias")
    if config.output_bias:
        table[f"{ours}.attention.output.bias"] = one(f"{theirs}.self_attn.o_proj.bias", hidden)
    if config.qk_norm:
        table[f"{ours}.attention.query_norm.weight"] = one(f"{theirs}.self_attn.q_norm.weight", config.head_dim)
        table[f"{ours}.attention.key_norm.weight"] = one(f"{theirs}.self_attn.k_norm.weight", config.head_dim)
    return table


def qkv_parts(config: ModelConfig, prefix: str, kind: str, *inputs: int) -> tuple[Part, ...]:
    """Query, key and value tensors of one layer, stacked in that order."""
    sizes = {"q": query_size(config), "k": key_size(config), "v": key_size(config)}
    return tuple(Part(name=f"{prefix}.{letter}_proj.{kind}", shape=(size, *inputs)) for letter, size in sizes.items())


def query_size(config: ModelConfig) -> int:
    """Width of all query heads."""
    return config.num_heads * config.head_dim


def key_size(config: ModelConfig) -> int:
    """Width of all key (or value) heads."""
    return config.num_kv_heads * config.head_dim
