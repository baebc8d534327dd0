"""Read and write EAGLE-3 checkpoints: native and speculators configs, `midlayer.*` or `layers.0.*`, with or without
t2d, embeddings and an index.

Shape letters: V draft vocabulary, W target vocabulary, D draft hidden.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from slipstream.config.draft import AS_DECLARED, CaptureConvention, DraftConfig, DraftWiring, MapReading
from slipstream.config.model import ModelConfig
from slipstream.draft.eagle3 import Eagle3Draft
from slipstream.draft.names import EMBEDDINGS, LEGACY_NORMS, draft_names, embedding_name, optional_names, prefix_of
from slipstream.draft.rewire import reorder_features
from slipstream.draft.settings import draft_config, native_config
from slipstream.draft.vocabulary import identity_ids, marked_ids, membership, offsets, target_ids
from slipstream.parallel.cut import check_heads
from slipstream.parallel.group import Group, SoloGroup
from slipstream.weights.cut import cut_table
from slipstream.weights.dummy import fill_dummy
from slipstream.weights.folder import read_config
from slipstream.weights.loader import load_weights, place
from slipstream.weights.reader import TensorSource, open_source


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDraft:
    """A draft ready to run."""

    model: Eagle3Draft
    target_ids: Tensor  # [V] int64, on the model's device: draft id -> target id
    shares_embedding: bool
    convention: str  # how explicit layer ids were read, for reports


def read_draft_config(
    path: Path, *, target: ModelConfig, convention: CaptureConvention, wiring: DraftWiring = AS_DECLARED
) -> DraftConfig:
    """Settle a draft's shape from the config.json in its directory.

    Raises:
        ValueError: no config, damaged JSON, or a variant that is not supported.
    """
    if path.suffix == ".gguf":
        raise ValueError(f"{path} is a GGUF; a draft is a folder with an EAGLE-3 checkpoint")
    return draft_config(read_config(path), target=target, convention=convention, wiring=wiring)


def load_draft(
    path: Path,
    *,
    target: ModelConfig,
    embedding: Tensor | None,
    max_position: int,
    device: torch.device,
    dtype: torch.dtype,
    head: Tensor | None = None,
    convention: CaptureConvention = CaptureConvention.AUTO,
    wiring: DraftWiring = AS_DECLARED,
    group: Group | None = None,
    embedding_group: Group | None = None,
) -> LoadedDraft:
    """Build a rank's share of a draft and fill it from its checkpoint.

    group: the ranks that the draft is cut over. embedding: the target's table [W, D], or this rank's rows of it where
    embedding_group cuts it; shared when the checkpoint has none or the same one. head: the target's head, whole or cut
    over `group`, taken when the checkpoint has none and covers the whole vocabulary. wiring: what is known better than
    the checkpoint's config.

    Raises:
        ValueError: the checkpoint does not fit its config, the target or the group; the first reason is named.
    """
    config = read_draft_config(path, target=target, convention=convention, wiring=wiring)
    body, group = config.body, group or SoloGroup()
    check_heads("the draft", num_heads=body.num_heads, num_kv_heads=body.num_kv_heads, size=group.size)
    source = open_source(path)
    present = set(source.names())
    ids_V = _target_ids(config, source, present, wiring.map_reading)
    own_embedding, own_head = embedding_name(present), "lm_head.weight" in present
    table = draft_names(
        config,
        prefix_of(present),
        own_embedding=own_embedding,
        own_head=own_head,
        legacy_norms=LEGACY_NORMS[0] in present,
    )
    with torch.device("meta"):
        model = Eagle3Draft(config, group=group, max_position=max_position, embedding_group=embedding_group)
    table = cut_table(table, body, group, whole=() if embedding_group else ("embed.weight",))
    load_weights(model, source, table, device=device, dtype=dtype, also_known=optional_names(present))
    if wiring.layers is not None:
        reorder_features(model, wiring.layers)
    shares = _place_embedding(model, embedding, own=own_embedding is not None)
    if not own_head:
        _place_head(model, head)
    model.rope.to(device)
    return LoadedDraft(
        model=model.eval(), target_ids=ids_V.to(device), shares_embedding=shares, convention=convention.value
    )


def dummy_draft(
    config: DraftConfig,
    *,
    embedding: Tensor | None,
    max_position: int,
    device: torch.device,
    dtype: torch.dtype,
    group: Group,
    embedding_group: Group | None,
    seed: int = 1,
) -> LoadedDraft:
    """A draft with small random weights, for timing shapes; it speaks the first ids of the target's vocabulary.

    embedding: the target's table, or this rank's rows of it, to share; None = one of its own.
    """
    body = config.body
    check_heads("the draft", num_heads=body.num_heads, num_kv_heads=body.num_kv_heads, size=group.size)
    with torch.device("meta"):
        model = Eagle3Draft(config, group=group, max_position=max_position, embedding_group=embedding_group)
    shares = embedding is not None and tuple(embedding.shape) == tuple(model.embed.weight.shape)
    if embedding is not None and shares:
        place(model, "embed.weight", embedding.to(dtype))
    fill_dummy(model, device=device, dtype=dtype, seed=seed, group=group, keep=("embed.weight",) if shares else ())
    model.rope.to(device)
    ids_V = identity_ids(config.draft_vocab_size).to(device)
    return LoadedDraft(model=model.eval(), target_ids=ids_V, shares_embedding=shares, convention="auto")


def save_draft(
    path: Path,
    draft: Eagle3Draft,
    ids_V: Tensor,
    *,
    target: ModelConfig,
    shares_embedding: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    card: str | None = None,
) -> None:
    """Write the native format, which SGLang and vLLM load: offsets in d2t, the mask in t2d.

    shares_embedding: the embeddings are the target's, and left out.

    Raises:
        ValueError: the vocabulary map does not fit the head, or the embeddings cannot be the target's.
    """
    if ids_V.shape[0] != draft.config.draft_vocab_size:
        raise ValueError(f"the map has {ids_V.shape[0]} ids but the head {draft.config.draft_vocab_size} rows")
    if shares_embedding and draft.config.body.hidden_size != target.hidden_size:
        raise ValueError("a draft of another width than its target has embeddings of its own; write them too")
    checked = target_ids(offsets(ids_V.to("cpu")), target_vocab_size=target.vocab_size)
    if draft.config.pruned and not bool(offsets(checked).any()):
        raise ValueError(
            "the map covers the first ids only, which no reader can tell from a missing map; choose others"
        )
    tensors = _native_tensors(draft, dtype, own_embedding=None if shares_embedding else EMBEDDINGS[0])
    tensors["d2t"] = offsets(checked)
    tensors["t2d"] = membership(checked, target_vocab_size=target.vocab_size)
    path.mkdir(parents=True, exist_ok=True)
    temporary = path / "model.safetensors.part"
    temporary.write_bytes(save(tensors, metadata={"format": "pt"}))  # save_file would make it unreadable to others
    temporary.replace(path / "model.safetensors")
    config = native_config(draft.config, target=target, dtype=dtype)
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if card is not None:
        (path / "README.md").write_text(card, encoding="utf-8")


def _native_tensors(draft: Eagle3Draft, dtype: torch.dtype, *, own_embedding: str | None) -> dict[str, Tensor]:
    """Cut merged parameters back into checkpoint tensors."""
    own = dict(draft.named_parameters())
    tensors: dict[str, Tensor] = {}
    for name, parts in draft_names(draft.config, "midlayer", own_embedding=own_embedding, own_head=True).items():
        sizes = [part.shape[0] for part in parts]
        for part, value in zip(parts, own[name].detach().split(sizes), strict=True):
            tensors[part.name] = value.to(device="cpu", dtype=dtype).contiguous().clone()
    return tensors


def _target_ids(config: DraftConfig, source: TensorSource, present: set[str], reading: MapReading) -> Tensor:
    needed = {MapReading.IDS: "d2t", MapReading.MASK: "t2d"}.get(reading)
    if needed is not None and needed not in present:
        raise ValueError(f"--draft-d2t {reading.value} reads {needed}, which the draft's checkpoint has not")
    if reading is MapReading.FIRST:
        return identity_ids(config.draft_vocab_size)
    if reading is MapReading.MASK:
        return marked_ids(source.read("t2d"), draft_vocab_size=config.draft_vocab_size)
    if "d2t" in present:
        found = tuple(source.shape("d2t"))
        if found != (config.draft_vocab_size,):
            raise ValueError(
                f"the draft's d2t has shape {list(found)} but draft_vocab_size is {config.draft_vocab_size};"
                " the file is damaged or its config belongs to another draft"
            )
        raw_V = source.read("d2t")
        if reading is MapReading.IDS:
            raw_V = offsets(raw_V)
        if config.pruned and not bool(raw_V.any()):
            raise ValueError(
                "the draft's head is pruned but its d2t is all zeros, which would map to the first ids; export it"
                " again, or pass --draft-d2t mask if its t2d is right"
            )
        return target_ids(raw_V, target_vocab_size=config.body.vocab_size)
    if config.pruned:
        raise ValueError(
            f"the draft's head has {config.draft_vocab_size} of {config.body.vocab_size} tokens but the checkpoint has"
            " no d2t map; export the draft with its vocabulary map"
        )
    return identity_ids(config.draft_vocab_size)


def _place_embedding(model: Eagle3Draft, embedding: Tensor | None, *, own: bool) -> bool:
    """Share the target's table where the checkpoint's is absent or the same; return whether it is shared."""
    shape = tuple(model.embed.weight.shape)
    if embedding is not None and embedding.dtype != model.norm.weight.dtype:
        embedding = embedding.to(model.norm.weight.dtype)  # a table of the draft's own, then
    if own:
        same = embedding is not None and tuple(embedding.shape) == shape and torch.equal(model.embed.weight, embedding)
        if not same:
            return False
    if embedding is None or tuple(embedding.shape) != shape:
        found = "none" if embedding is None else list(embedding.shape)
        raise ValueError(
            f"the draft has no embed_tokens and the target's table is {found}, not {list(shape)}; this draft needs its"
            " own embeddings: export it with embed_tokens.weight"
        )
    place(model, "embed.weight", embedding)
    return True


def _place_head(model: Eagle3Draft, head: Tensor | None) -> None:
    shape = tuple(model.head.weight.shape)
    if model.config.tie_head:
        head = model.embed.weight.data
    if head is not None and head.shape[0] == model.config.draft_vocab_size:
        head = head[model.shard.span.start : model.shard.span.stop].to(model.norm.weight.dtype)
    if head is None or tuple(head.shape) != shape:
        raise ValueError(
            f"the draft has no lm_head.weight and no head of shape {list(shape)} can be shared; export it with its head"
        )
    place(model, "head.weight", head)
