"""A tiny target, a draft for it, and conversations."""

import numpy as np
import torch

from slipstream.config.model import ModelConfig, RopeConfig
from slipstream.models.registry import dummy_target
from slipstream.train.conversations import Conversation, pack
from slipstream.train.initialise import new_draft
from slipstream.train.objective import run_target
from slipstream.train.options import DraftOptions
from slipstream.train.teacher import DraftVocabulary

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=32,
    intermediate_size=48,
    num_layers=7,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=61,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    max_position=128,
    tie_embeddings=True,
    eos_ids=(2,),
)
CPU = torch.device("cpu")


def target_model(seed=0, scale=6.0):
    """A random target whose weights are large enough to have opinions."""
    target = dummy_target(CONFIG, device=CPU, dtype=torch.float32, max_position=128, seed=seed)
    for name, parameter in target.named_parameters():
        parameter.requires_grad_(False)
        if not name.endswith("norm.weight"):
            parameter.data *= scale
    return target


def made(seed=0, vocab_size=40, **options):
    """A target, a draft with noise everywhere, and its vocabulary."""
    target = target_model(seed)
    ids = np.sort(np.random.default_rng(seed).permutation(CONFIG.vocab_size)[:vocab_size]).astype(np.int64)
    vocabulary = DraftVocabulary.of(ids, target_vocab_size=CONFIG.vocab_size, device=CPU)
    shape = DraftOptions(vocab_size=vocab_size, **options)
    draft = new_draft(target, vocabulary.ids_V, shape, max_position=128, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in draft.parameters():
        if parameter.requires_grad:
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    target.capture(draft.config.captures)
    return target, draft, vocabulary


def some_features(target, *, num_sequences, num_tokens, seed=0):
    """Random tokens [B, T] and the target's features of them [B * T, F]."""
    generator = torch.Generator().manual_seed(seed)
    tokens_BT = torch.randint(3, CONFIG.vocab_size, (num_sequences, num_tokens), generator=generator)
    features = run_target(target, tokens_BT).features_TF
    return tokens_BT, features


def conversations(num=12, seed=0):
    """Random conversations of several lengths."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(num):
        length = int(random.integers(6, 20))
        tokens = [int(token) for token in random.integers(3, CONFIG.vocab_size, length)]
        made.append(Conversation(tokens=[*tokens, 2], num_prompt=int(random.integers(1, 5))))
    return pack(made)
