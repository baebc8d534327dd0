"""Real text with everything the target says and holds about it: the ground on which wirings are compared.

The text is the target's own greedy answers, since that is what a draft is trained on and what it has to draft.

Shape letters: B sequences, T tokens of each (right-padded), R = B * T packed rows, E target hidden, W target
vocabulary, P likeliest tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.models.decoder import Decoder
from slipstream.text.prompts import PromptEntry
from slipstream.train.answer import Answerer, AnswerOptions
from slipstream.train.batches import load_batch
from slipstream.train.conversations import Conversation, Conversations, pack
from slipstream.train.objective import run_target
from slipstream.train.target import OpenTarget

LIKELIEST = 64  # tokens of the target's distribution that are compared
ANSWER_BATCH = 16
CHUNK_ELEMENTS = 1 << 26  # of fp32 target logits: 256 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the target wrote, said and held."""

    tokens_BT: Tensor
    conversations: Conversations
    states_NRE: tuple[Tensor, ...]  # after k layers, k = 0..N
    likeliest_RP: Tensor  # the target's likeliest next tokens after each row
    probabilities_RP: Tensor  # theirs, summing to one

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that the target wrote."""
        return int((self.conversations.lengths_C - self.conversations.prompts_C).sum())

    def features(self, layers: Sequence[int], *, of_other_text: bool = False) -> Tensor:
        """States after these layers, side by side in this order: [R, F]; or the next sequence's, as a control."""
        features_RF = torch.cat([self.states_NRE[layer] for layer in layers], dim=-1).float()
        return features_RF.roll(self.tokens_BT.shape[1], dims=0) if of_other_text else features_RF

    def shuffled(self) -> "Evidence":
        """The same, of a target that is the same but for the order of its hidden dimensions."""
        width = self.states_NRE[0].shape[-1]
        order_E = torch.randperm(width, generator=torch.Generator().manual_seed(0)).to(self.tokens_BT.device)
        return replace(self, states_NRE=tuple(state_RE[:, order_E] for state_RE in self.states_NRE))


def chosen_prompts(entries: Sequence[PromptEntry], target: OpenTarget, *, count: int, longest: int) -> list[list[int]]:
    """Token ids of up to `count` prompts: the shorter half of twice as many, in turns from all over the list.

    Raises:
        ValueError: all are longer than `longest` tokens.
    """
    spread = [entry for start in range(3) for entry in entries[start::3]]
    found = [ids for entry in spread if len(ids := _ids(entry, target)) <= longest]
    if not found:
        raise ValueError(f"every prompt is longer than {longest} tokens; give shorter ones")
    return sorted(found[: 2 * count], key=len)[:count]


def _ids(entry: PromptEntry, target: OpenTarget) -> list[int]:
    if target.template is not None:
        return target.tokenizer.encode(target.template.render(entry.conversation))
    return target.tokenizer.encode(str(entry.conversation[-1].get("content")))


def gather(
    target: Decoder,
    prompts: Sequence[list[int]],
    *,
    max_tokens: int,
    stop_ids: tuple[int, ...],
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Evidence:
    """Let the target answer, then run everything through it once more and keep the states after every layer."""
    on_stage("the target answers")
    options = AnswerOptions(max_tokens=max_tokens, batch=ANSWER_BATCH, stop_ids=stop_ids)
    answered = Answerer(target, options).answer(prompts, [0.0] * len(prompts))
    return capture(target, answered, on_stage=on_stage)


@torch.no_grad()
def capture(
    target: Decoder, answered: Sequence[Conversation], *, on_stage: Callable[[str], None] = lambda stage: None
) -> Evidence:
    """Keep the states after every layer of conversations whose answers are the target's greedy ones."""
    on_stage("the target reads")
    conversations, device = pack(answered), target.embed.weight.device
    tokens_BT = load_batch(conversations, np.arange(len(answered)), device=device).tokens_BT
    before, num_layers = target.captures, target.config.num_layers
    target.capture(tuple(range(num_layers + 1)))
    hidden = run_target(target, tokens_BT)
    target.capture(before)
    assert hidden.features_TF is not None, "every layer was captured"
    likeliest_RP, probabilities_RP = _likeliest(target, hidden.final_TD, answer_rows(conversations, tokens_BT))
    return Evidence(
        tokens_BT=tokens_BT,
        conversations=conversations,
        states_NRE=hidden.features_TF.split(target.config.hidden_size, dim=-1),
        likeliest_RP=likeliest_RP,
        probabilities_RP=probabilities_RP,
    )


def answer_rows(conversations: Conversations, tokens_BT: Tensor) -> NDArray[np.int64]:
    """Packed rows of all tokens that the target wrote."""
    spans = zip(conversations.prompts_C, conversations.lengths_C, strict=True)
    width = tokens_BT.shape[1]
    return np.concatenate([index * width + np.arange(first, last) for index, (first, last) in enumerate(spans)])


def _likeliest(target: Decoder, final_RE: Tensor, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """The target's likeliest next tokens and their probabilities at `rows`; zeros elsewhere."""
    count = min(LIKELIEST, target.config.vocab_size)
    ids_RP = torch.zeros(final_RE.shape[0], count, dtype=torch.int64, device=final_RE.device)
    probabilities_RP = torch.zeros(final_RE.shape[0], count, device=final_RE.device)
    chunk = max(1, CHUNK_ELEMENTS // target.config.vocab_size)
    for start in range(0, len(rows), chunk):
        rows_C = torch.from_numpy(rows[start : start + chunk]).to(final_RE.device)
        found = target.logits(final_RE[rows_C]).softmax(-1).topk(count, dim=-1)
        ids_RP[rows_C] = found.indices
        probabilities_RP[rows_C] = found.values / found.values.sum(-1, keepdim=True)
    return ids_RP, probabilities_RP
