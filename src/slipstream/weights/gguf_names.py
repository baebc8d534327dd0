"""Turn llama.cpp's tensor names into those of a Hugging Face checkpoint."""

import re
from collections.abc import Mapping

OUTER: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_BLOCK: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"  # read by gguf_config, not a weight
BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def hf_name(name: str) -> str | None:
    """Give the Hugging Face name of a tensor; None for one that has no place in a dense decoder."""
    if name in OUTER:
        return OUTER[name]
    match = BLOCK.fullmatch(name)
    if match is None or match[2] not in IN_BLOCK:
        return None
    return f"model.layers.{match[1]}.{IN_BLOCK[match[2]]}.{match[3]}"
