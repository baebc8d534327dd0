"""Does this draft fit this target? Shapes, vocabulary, maps, RoPE, norms, words: from configs and headers alone.

Shape letters: V draft vocabulary, W target vocabulary.
"""

from collections.abc import Iterator

import torch

from slipstream.config.draft import AS_DECLARED, CaptureConvention, DraftConfig, DraftWiring, MapReading
from slipstream.config.model import ModelConfig
from slipstream.doctor.checkpoint import DraftFiles, declared_layers, readable_maps, settled_config
from slipstream.doctor.finding import Finding, broken, healthy, warning
from slipstream.draft.names import LEGACY_NORMS
from slipstream.draft.settings import draft_config
from slipstream.models.registry import REGISTRY

ANOTHER = "choose a draft that was trained for this target"
AGAIN = "export the draft again, with its config beside its weights"
LAYER_KEY = "eagle_aux_hidden_state_layer_ids"


def compatibility(
    files: DraftFiles,
    target: ModelConfig,
    *,
    convention: CaptureConvention,
    has_template: bool,
    known: DraftWiring = AS_DECLARED,
) -> list[Finding]:
    """Look at everything that can be looked at without running the models.

    known: what a user says is known better than the checkpoint; what it replaces is not complained of.
    """
    found = [_architecture(target), *_target_widths(files, target)]
    layers = known.layers or declared_layers(files, target, convention)
    found.append(_known_layers(files, target, layers) if known.layers else _layers(files, target, layers, convention))
    try:
        config = settled_config(files, target, layers or tuple(range(1, 1 + _count(files, target))))
    except ValueError as error:
        return [*found, broken("config", f"the draft's config is refused: {error}", ANOTHER), _template(has_template)]
    found += [*_shapes(files, config), *_norms(files, config), *_vocabulary(files, config, known.map_reading)]
    return [*found, *_positions(files, config, target), *_words(files, target), _template(has_template)]


def _architecture(target: ModelConfig) -> Finding:
    if target.architecture in REGISTRY:
        return healthy("target", f"{target.architecture}, {target.num_layers} layers of {target.hidden_size}")
    known = ", ".join(sorted(REGISTRY))
    return broken("target", f"{target.architecture} is not supported", f"use a target of {known}")


def _target_widths(files: DraftFiles, target: ModelConfig) -> Iterator[Finding]:
    body = files.raw.get("transformer_layer_config") or files.raw
    declared = files.raw.get("target_hidden_size") or body.get("hidden_size")
    if declared != target.hidden_size:
        yield broken(
            "hidden size", f"the draft reads states of {declared}, the target's have {target.hidden_size}", ANOTHER
        )
    else:
        yield healthy("hidden size", f"{declared} on both sides")
    vocab_size = body.get("vocab_size", target.vocab_size)
    if vocab_size != target.vocab_size:
        yield broken("vocabulary", f"the draft knows {vocab_size} tokens, the target {target.vocab_size}", ANOTHER)


def _count(files: DraftFiles, target: ModelConfig) -> int:
    """How many captured states fc reads."""
    shape = files.shape("fc.weight")
    return 3 if shape is None else max(1, shape[-1] // target.hidden_size)


def _layers(
    files: DraftFiles, target: ModelConfig, layers: tuple[int, ...] | None, convention: CaptureConvention
) -> Finding:
    ids, name = files.declared_ids, "capture layers"
    if layers is None:
        says = f"layer ids {list(ids or ())} of a target of {target.num_layers} layers name no states to capture"
        return broken(name, says, f"write {LAYER_KEY} into the draft's config.json, or pass --draft-layers")
    count = _count(files, target)
    if len(layers) != count:
        says = f"fc reads {count} states but the config names {len(layers)} layers, {list(layers)}"
        return broken(name, says, f"write the {count} layers into {LAYER_KEY}, or pass --draft-layers")
    if list(layers) != sorted(layers):
        says = f"the layers {list(layers)} do not ascend, and every engine captures them ascending"
        return broken(name, says, "see the wiring below; --draft-layers gives fc's order")
    if ids is None:
        return healthy(name, f"after {list(layers)} layers, the default of every engine")
    try:
        draft_config(files.raw, target=target, convention=convention)
    except ValueError as error:
        return broken(name, f"{error}", "pass --draft-layers")
    if ids != layers and convention is CaptureConvention.AUTO:
        return healthy(name, f"ids {list(ids)} are read as outputs: after {list(layers)} layers")
    return healthy(name, f"after {list(layers)} layers, as config.json says")


def _known_layers(files: DraftFiles, target: ModelConfig, layers: tuple[int, ...] | None) -> Finding:
    """What --draft-layers says."""
    name, count = "capture layers", _count(files, target)
    named = "--draft-layers " + ",".join(map(str, layers or ()))
    if layers is None or len(layers) != count:
        return broken(name, f"{named} does not name {count} layers, which is what fc reads", "name as many as fc reads")
    return healthy(name, f"after {list(layers)} layers, as --draft-layers says")


def _shapes(files: DraftFiles, config: DraftConfig) -> Iterator[Finding]:
    fc = files.shape("fc.weight")
    wanted = (config.body.hidden_size, config.feature_size)
    if fc != wanted and fc is not None and fc[-1] % config.target_hidden_size == 0 and fc[0] == wanted[0]:
        return  # the number of layers, which was said already
    if fc is None or fc != wanted:
        found = "missing" if fc is None else list(fc)
        yield broken("feature width", f"fc.weight is {found}, where {list(wanted)} is expected", AGAIN)
    else:
        count = len(config.captures)
        yield healthy("feature width", f"{fc[1]} = {count} states x {config.target_hidden_size}")


def _norms(files: DraftFiles, config: DraftConfig) -> Iterator[Finding]:
    """Flags that come with tensors; those that do not are tried out below, as wiring."""
    chunked = files.shape("fc_norm.0.weight") is not None or files.shape(LEGACY_NORMS[0]) is not None
    joined = files.shape("input_norm.weight") is not None
    for flag, declared, present in (
        ("fc_norm", config.fc_norm, chunked),
        ("norm_before_fc", config.norm_before_fc, joined),
    ):
        if declared and not present:
            yield broken("norm flags", f"the config sets {flag} but the checkpoint has no such norm", AGAIN)
        if present and not declared:
            says = f"the checkpoint has the norms of {flag} but the config does not set it"
            yield broken("norm flags", says, f'write "{flag}": true into the draft\'s config.json')
    if (config.fc_norm, config.norm_before_fc) == (chunked, joined):
        flags = ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual")
        on = ", ".join(flag for flag in flags if getattr(config, flag))
        yield healthy("norm flags", f"{on or 'none'} set, and the checkpoint has what belongs to them")


def _vocabulary(files: DraftFiles, config: DraftConfig, reading: MapReading) -> Iterator[Finding]:
    vocab_size, count, head = config.body.vocab_size, config.draft_vocab_size, files.shape("lm_head.weight")
    if head is not None and head[0] != count:
        yield broken("head", f"lm_head has {head[0]} rows but draft_vocab_size is {count}", AGAIN)
    elif head is None and config.pruned and not config.tie_head:
        yield broken("head", "the head is pruned and the checkpoint has none", AGAIN)
    else:
        yield healthy("head", f"{count} of the target's {vocab_size} tokens" if config.pruned else "all tokens")
    if reading is MapReading.OFFSETS:
        yield _map(files, config)
    elif reading in readable_maps(files, config):
        yield healthy("d2t", f"read as --draft-d2t {reading.value} says")
    else:
        says = f"--draft-d2t {reading.value} leads to no ids inside the target's vocabulary"
        yield broken("d2t", says, "leave it out to see what does")


def _map(files: DraftFiles, config: DraftConfig) -> Finding:
    name, vocab_size, count = "d2t", config.body.vocab_size, config.draft_vocab_size
    way_out = "pass --draft-d2t mask, since t2d marks as many ids" if _marks(files, config) else AGAIN
    shape = files.shape("d2t")
    if shape is None:
        if not config.pruned:
            return healthy(name, "none is needed, the head covers the whole vocabulary")
        return broken(name, "the head is pruned and there is no d2t: its rows would read as the first ids", way_out)
    if shape != (count,):
        return broken(name, f"d2t has shape {list(shape)} where {count} entries belong", way_out)
    raw_V = files.source.read("d2t").to(torch.int64)
    if config.pruned and not bool(raw_V.any()):
        return broken(name, "d2t is all zeros: the head's rows would read as the first ids", way_out)
    ids_V = raw_V + torch.arange(count)
    low, high = int(ids_V.min()), int(ids_V.max())
    if low < 0 or high >= vocab_size:
        fix = "pass --draft-d2t ids" if _are_ids(raw_V, vocab_size) else way_out
        return broken(name, f"d2t read as offsets leads to ids {low}..{high}, outside of 0..{vocab_size - 1}", fix)
    if bool((ids_V[1:] <= ids_V[:-1]).any()):
        doubled = count - len(torch.unique(ids_V))
        return broken(name, f"d2t's target ids do not ascend ({doubled} of them come twice)", way_out)
    return _against_mask(files, ids_V, vocab_size)


def _against_mask(files: DraftFiles, ids_V: torch.Tensor, vocab_size: int) -> Finding:
    says = f"ids {int(ids_V[0])}..{int(ids_V[-1])}, ascending, inside the target's {vocab_size}"
    if files.shape("t2d") is None:
        return healthy("d2t", says)
    marked = files.source.read("t2d").to(torch.bool).nonzero()[:, 0]
    if marked.shape == ids_V.shape and bool((marked == ids_V).all()):
        return healthy("d2t", f"{says}; t2d agrees")
    return warning("d2t", f"{says}; but t2d marks others", "see below which is right; --draft-d2t mask reads t2d")


def _marks(files: DraftFiles, config: DraftConfig) -> bool:
    if files.shape("t2d") != (config.body.vocab_size,):
        return False
    return int(files.source.read("t2d").to(torch.bool).sum()) == config.draft_vocab_size


def _are_ids(raw_V: torch.Tensor, vocab_size: int) -> bool:
    return int(raw_V.min()) >= 0 and int(raw_V.max()) < vocab_size and bool((raw_V[1:] > raw_V[:-1]).all())


def _positions(files: DraftFiles, config: DraftConfig, target: ModelConfig) -> Iterator[Finding]:
    body, kept = config.body, "copy rope_theta and rope_scaling from the target's config.json, unless trained otherwise"
    if body.rope == target.rope:
        yield healthy("RoPE", f"{body.rope.kind.value}, theta {body.rope.theta:g}, as the target's")
    else:
        says = f"{body.rope.kind.value}, theta {body.rope.theta:g}; the target's is {target.rope.kind.value},"
        yield warning("RoPE", f"{says} theta {target.rope.theta:g}", kept)
    if body.max_position < target.max_position:
        says = f"the draft was made for {body.max_position} positions, the target for {target.max_position}"
        yield warning("length", says, f"pass --draft-max-len {body.max_position} if acceptance falls beyond")
    else:
        yield healthy("length", f"{body.max_position} positions, the target has {target.max_position}")
    if body.rms_norm_eps != target.rms_norm_eps:
        says = f"rms_norm_eps is {body.rms_norm_eps:g}, the target's {target.rms_norm_eps:g}"
        yield warning("norm epsilon", says, "copy rms_norm_eps from the target's config.json, unless trained otherwise")


def _words(files: DraftFiles, target: ModelConfig) -> Iterator[Finding]:
    body = files.raw.get("transformer_layer_config") or files.raw
    eos, stored = body.get("eos_token_id"), body.get("torch_dtype") or body.get("dtype")
    ids = set(eos) if isinstance(eos, list) else {eos}
    if eos is not None and target.eos_ids and not ids & set(target.eos_ids):
        says = f"the draft's end of text is {eos}, the target's {list(target.eos_ids)}"
        yield warning("end of text", says, f"check that it is the same model: {ANOTHER}")
    if stored in ("float16", "bfloat16", "float32"):
        yield healthy("dtype", f"stored in {stored}")
    else:
        yield warning("dtype", f"config.json says {stored!r} of its dtype", "write torch_dtype, or pass --draft-dtype")


def _template(has_template: bool) -> Finding:
    if has_template:
        return healthy("chat template", "the target has one")
    says = "the target has no chat template, so conversations cannot be written as it was taught"
    return warning("chat template", says, "give texts with --raw, or add chat_template.jinja to the target's folder")
