"""What is wrong, in words, and what to write where: for slipstream, SGLang and vLLM.

SGLang reads explicit layer ids as outputs (it adds one; for DeepSeek-like targets only if the first id is 1); vLLM
reads them as inputs, as they are, and sorts them. Neither reads states in another order than the layers'.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.config.draft import MapReading, default_captures
from slipstream.doctor.wiring import Aspect, Hypothesis, Wiring

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
RETRAIN = "no setting: export or train the draft again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One mistake in a wiring."""

    name: str
    says: str  # one sentence
    slipstream: str  # the flag that puts it right
    sglang: str  # the key of config.json, or what to do instead
    vllm: str


def cause_of(change: Hypothesis, base: Wiring, *, num_layers: int) -> Cause:
    """What was wrong with `base`, given the change that puts it right."""
    assert change.aspect is not None, "a change changes something"
    return {
        Aspect.LAYERS: _layers,
        Aspect.FEEDBACK: _feedback,
        Aspect.RESIDUAL: _residual,
        Aspect.MAP: _map,
        Aspect.SHIFT: _shift,
        Aspect.EMBEDDING: _embedding,
        Aspect.ROPE: _rope,
    }[change.aspect](change.wiring, base, num_layers)


def listed(layers: Sequence[int]) -> str:
    """Layers as the flag takes them."""
    return ",".join(map(str, layers))


def _layers(right: Wiring, base: Wiring, num_layers: int) -> Cause:
    steps = {one - other for one, other in zip(base.layers, right.layers, strict=True)}
    if steps == {1}:
        name = "layers +1"
    elif steps == {-1}:
        name = "layers -1"
    elif base.layers == right.layers[::-1]:
        name = "layers reversed"
    else:
        name = "other layers" if sorted(base.layers) != sorted(right.layers) else "layers in another order"
    says = (
        f"the draft reads the target's states after {listed(right.layers)} layers, not after {listed(base.layers)}"
        f" as declared ({name})"
    )
    flag = f"--draft-layers {listed(right.layers)}"
    if list(right.layers) != sorted(right.layers):
        order = "no key: it takes the states in the layers' order; reorder the column blocks of fc.weight instead"
        return Cause(name=name, says=says, slipstream=flag, sglang=order, vllm=order)
    if right.layers == _defaults(num_layers):
        leave = f"leave {IDS_KEY} out of config.json: these are its default layers"
        return Cause(name=name, says=says, slipstream=flag, sglang=leave, vllm=leave)
    outputs, inputs = [layer - 1 for layer in right.layers], list(right.layers)
    return Cause(
        name=name,
        says=says,
        slipstream=flag,
        sglang=f'"eagle_config": {{"{IDS_KEY}": {outputs}}}',
        vllm=f'"{IDS_KEY}": {inputs}',
    )


def _defaults(num_layers: int) -> tuple[int, ...] | None:
    try:
        return default_captures(num_layers)
    except ValueError:
        return None


def _feedback(right: Wiring, base: Wiring, num_layers: int) -> Cause:
    name = "post-norm feedback" if base.norm_output else "pre-norm feedback"
    wanted, found = ("normed", "raw") if right.norm_output else ("raw", "normed")
    return Cause(
        name=name,
        says=f"from the second step on the draft reads its own {wanted} hidden state, not the {found} one ({name})",
        slipstream="--draft-norm-output" if right.norm_output else "--no-draft-norm-output",
        sglang=f'"norm_output": {_json(right.norm_output)}',
        vllm=f'"norm_output": {_json(right.norm_output)}',
    )


def _residual(right: Wiring, base: Wiring, num_layers: int) -> Cause:
    flag = "draft-norm-before-residual"
    state, name = ("normed", "residual before the norm") if right.norm_before_residual else ("raw", "normed residual")
    return Cause(
        name=name,
        says=f"the residual of the draft's first layer is the {state} hidden state, other than declared ({name})",
        slipstream=f"--{flag}" if right.norm_before_residual else f"--no-{flag}",
        sglang=RETRAIN if right.norm_before_residual else "nothing: it knows no other residual",
        vllm=f'"norm_before_residual": {_json(right.norm_before_residual)}',
    )


def _map(right: Wiring, base: Wiring, num_layers: int) -> Cause:
    names = {
        MapReading.OFFSETS: ("d2t read wrongly", "the map is in d2t, as offsets"),
        MapReading.IDS: ("d2t as ids", "d2t holds target ids where offsets belong"),
        MapReading.MASK: ("d2t damaged", "the map is still in t2d"),
        MapReading.FIRST: ("d2t of another head", "the head speaks the first ids, and d2t says otherwise"),
    }
    name, says = names[right.map_reading]
    if base.map_reading is MapReading.FIRST:
        name, says = "d2t zeroed", f"the head's rows are read as the target's first ids (d2t zeroed or missing); {says}"
    if base.map_reading is MapReading.IDS and right.map_reading is MapReading.OFFSETS:
        name, says = "d2t as ids", "d2t holds offsets, and is read as if it held ids"
    rewrite = "no key: write d2t again as offsets (target id - draft id)"
    offsets = right.map_reading is MapReading.OFFSETS
    theirs = "nothing: it reads d2t as offsets" if offsets else rewrite
    return Cause(name=name, says=says, slipstream=f"--draft-d2t {right.map_reading.value}", sglang=theirs, vllm=theirs)


def _shift(right: Wiring, base: Wiring, num_layers: int) -> Cause:
    if right.shifted:
        nothing = "nothing: it shifts the tokens by itself"
        return Cause(
            name="unshifted tokens",
            says="at position p the draft embeds token p + 1, and it was given token p (unshifted tokens)",
            slipstream=nothing,
            sglang=nothing,
            vllm=nothing,
        )
    return Cause(
        name="trained on unshifted tokens",
        says="at position p this draft embeds token p, where every engine gives it token p + 1",
        slipstream="train it again: `slipstream train` shifts the tokens",
        sglang=RETRAIN,
        vllm=RETRAIN,
    )


def _embedding(right: Wiring, base: Wiring, num_layers: int) -> Cause:
    return Cause(
        name="embeddings of its own",
        says="the checkpoint's embeddings serve worse than the target's; they were never trained, or belong elsewhere",
        slipstream="remove embed_tokens.weight from the checkpoint",
        sglang="nothing: it takes the target's embeddings",
        vllm="remove embed_tokens.weight from the checkpoint",
    )


def _rope(right: Wiring, base: Wiring, num_layers: int) -> Cause:
    keys = "copy rope_theta and rope_scaling from the target's config.json into the draft's"
    return Cause(
        name="RoPE of its own",
        says="the draft serves better with the target's RoPE than with what its config declares",
        slipstream=keys,
        sglang=keys,
        vllm=keys,
    )


def _json(value: bool) -> str:
    return str(value).lower()
