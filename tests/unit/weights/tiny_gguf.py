"""Write tiny GGUF files, with rows reordered as llama.cpp's converter reorders them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers import Tokenizer, pre_tokenizers, trainers
from tokenizers.models import BPE

HIDDEN, FFN, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, VOCAB = 64, 96, 2, 4, 2, 300
HEAD_DIM = 24  # not HIDDEN // NUM_HEADS: the file says so
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def state(arch: str, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Draw the weights of a tiny model, by Hugging Face name."""
    draw = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(NUM_LAYERS):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _block_shapes(arch).items()}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _block_shapes(arch: str) -> dict[str, tuple[int, ...]]:
    queries, kv = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (queries, HIDDEN),
        "self_attn.k_proj.weight": (kv, HIDDEN),
        "self_attn.v_proj.weight": (kv, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, queries),
        "mlp.gate_proj.weight": (FFN, HIDDEN),
        "mlp.up_proj.weight": (FFN, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, FFN),
    }
    if arch == "qwen2":
        shapes |= {f"self_attn.{name}_proj.bias": (width,) for name, width in (("q", queries), ("k", kv), ("v", kv))}
    if arch == "qwen3":
        shapes |= {"self_attn.q_norm.weight": (HEAD_DIM,), "self_attn.k_norm.weight": (HEAD_DIM,)}
    return shapes


def stored_name(name: str) -> str:
    """Give llama.cpp's name for a Hugging Face one."""
    outer = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not name.startswith("model.layers."):
        return outer.get(name, "output.weight")
    _, _, layer, *middle, kind = name.split(".")
    return f"blk.{layer}.{_NAMES['.'.join(middle)]}.{kind}"


def reorder(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Interleave the halves of each head, as the converter does for the architecture llama."""
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def write(
    path: Path,
    *,
    arch: str = "llama",
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    tied: bool = True,
    extra: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write a tiny model, its matrices stored as `kind`; a None in `extra` drops a key. Give the weights it has."""
    weights = state(arch, tied=tied)
    writer = GGUFWriter(path, arch)
    metadata = {**shape_metadata(arch), **tokenizer_metadata(), **(extra or {})}
    for key, value in metadata.items():
        if value is not None:
            _add(writer, key, value)
    for name, values in weights.items():
        stored = values
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            stored = reorder(values, NUM_HEADS if "q_proj" in name else NUM_KV_HEADS)
        used = kind if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(stored_name(name), quantize(stored, used), raw_dtype=used)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    _finish(writer)
    return weights


def shape_metadata(arch: str) -> dict[str, Any]:
    """Give the sizes as llama.cpp keys them."""
    return {
        f"{arch}.block_count": NUM_LAYERS,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.feed_forward_length": FFN,
        f"{arch}.attention.head_count": NUM_HEADS,
        f"{arch}.attention.head_count_kv": NUM_KV_HEADS,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.attention.key_length": HEAD_DIM,
        f"{arch}.attention.value_length": HEAD_DIM,
        f"{arch}.rope.freq_base": 100000.0,
    }


def tokenizer_metadata(
    text: Sequence[str] = ("hello world, hello there",), *, splitter: str = "smollm"
) -> dict[str, Any]:
    """Train a byte-level tokenizer, pad it to VOCAB tokens and give it as llama.cpp keys it."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    tokens = [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]
    kinds = [CONTROL if token in SPECIAL else NORMAL for token in tokens]
    padding = [f"[PAD{index}]" for index in range(len(tokens), VOCAB)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": splitter,
        "tokenizer.ggml.tokens": [*tokens, *padding],
        "tokenizer.ggml.token_type": [*kinds, *[UNUSED] * len(padding)],
        "tokenizer.ggml.merges": _merges(tokenizer),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }


def _merges(tokenizer: Tokenizer) -> list[str]:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
