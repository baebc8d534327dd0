"""What a rank reads of a checkpoint: a name table with every part cut to the rank's share.

The rules go by our parameter names, so a model's own name table knows nothing of ranks. Whatever no rule names
(norms, the fusion of features) is whole on every rank.
"""

from dataclasses import replace

from slipstream.config.model import ModelConfig
from slipstream.parallel.cut import Span, kv_heads, query_heads, span_of
from slipstream.parallel.group import Group
from slipstream.weights.names import NameTable, Part, PartCut

ROWS = ("mlp.gate_up.weight", "head.weight", "embed.weight")  # cut along their outputs or vocabulary
COLUMNS = ("attention.output.weight", "mlp.down.weight")  # cut along their inputs: partial sums
HEADS = ("attention.qkv.weight", "attention.qkv.bias")


def cut_table(table: NameTable, config: ModelConfig, group: Group, *, whole: tuple[str, ...] = ()) -> NameTable:
    """The table with each part's cut; whole: parameters that stay uncut though a rule names them."""
    if group.size == 1:
        return table
    return {name: parts if name in whole else _cut(name, parts, config, group) for name, parts in table.items()}


def _cut(name: str, parts: tuple[Part, ...], config: ModelConfig, group: Group) -> tuple[Part, ...]:
    if name.endswith(HEADS):
        query = query_heads(config.num_heads, group.rank, group.size)
        key = kv_heads(config.num_kv_heads, group.rank, group.size)
        spans = [Span(heads.start * config.head_dim, heads.stop * config.head_dim) for heads in (query, key, key)]
        return tuple(_take(part, 0, span) for part, span in zip(parts, spans, strict=True))
    if name.endswith("attention.output.weight"):
        query = query_heads(config.num_heads, group.rank, group.size)
        return tuple(
            _take(part, 1, Span(query.start * config.head_dim, query.stop * config.head_dim)) for part in parts
        )
    for suffixes, dim in ((ROWS, 0), (COLUMNS, 1)):
        if name.endswith(suffixes):
            return tuple(_take(part, dim, span_of(part.shape[dim], group.rank, group.size)) for part in parts)
    return parts


def _take(part: Part, dim: int, span: Span) -> Part:
    return replace(part, cut=PartCut(dim=dim, start=span.start, stop=span.stop))
