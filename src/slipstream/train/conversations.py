"""Answered prompts as flat token ids: nothing is tokenised twice.

Shape letters: N all tokens, C conversations.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from slipstream.text.loops import loop_start

FILE = "conversations.safetensors"
SMALL_VOCABULARY = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One prompt and its answer."""

    tokens: list[int]  # prompt, then answer; the end-of-turn id is the last one unless the answer was cut
    num_prompt: int
    cut: bool = False  # the answer ran into its token limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Many conversations, back to back."""

    tokens_N: NDArray[np.int32]
    starts_C: NDArray[np.int64]  # C + 1 offsets into tokens_N
    prompts_C: NDArray[np.int32]  # prompt tokens of each
    cut_C: NDArray[np.bool_]

    def __len__(self) -> int:
        """How many conversations."""
        return len(self.prompts_C)

    @property
    def lengths_C(self) -> NDArray[np.int64]:
        """Tokens of each conversation."""
        return np.diff(self.starts_C)

    @property
    def num_answer_tokens(self) -> int:
        """Tokens the target wrote."""
        return int(self.lengths_C.sum() - self.prompts_C.sum())

    def tokens(self, row: int) -> NDArray[np.int32]:
        """Ids of one conversation."""
        return self.tokens_N[self.starts_C[row] : self.starts_C[row + 1]]

    def answer(self, row: int) -> NDArray[np.int32]:
        """Ids of one answer."""
        return self.tokens(row)[self.prompts_C[row] :]

    def answer_counts(self, vocab_size: int) -> NDArray[np.int64]:
        """How often each id stands in an answer."""
        inside_N = np.arange(len(self.tokens_N)) - np.repeat(self.starts_C[:-1], self.lengths_C)
        answered_N = inside_N >= np.repeat(self.prompts_C, self.lengths_C)
        return np.bincount(self.tokens_N[answered_N], minlength=vocab_size)


def pack(conversations: Iterable[Conversation]) -> Conversations:
    """Lay conversations out flat."""
    kept = list(conversations)
    lengths = [len(conversation.tokens) for conversation in kept]
    flat = [token for conversation in kept for token in conversation.tokens]
    return Conversations(
        tokens_N=np.asarray(flat, dtype=np.int32),
        starts_C=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64),
        prompts_C=np.asarray([conversation.num_prompt for conversation in kept], dtype=np.int32),
        cut_C=np.asarray([conversation.cut for conversation in kept], dtype=np.bool_),
    )


def save(conversations: Conversations, path: Path, *, target: str = "") -> None:
    """Write a file; ids take two bytes where the vocabulary allows. target: what marks the model that answered."""
    tokens_N = conversations.tokens_N
    small = not len(tokens_N) or int(tokens_N.max()) < SMALL_VOCABULARY
    tensors = {
        "tokens": tokens_N.astype(np.uint16) if small else tokens_N,
        "lengths": conversations.lengths_C.astype(np.int32),
        "prompts": conversations.prompts_C,
        "cut": conversations.cut_C,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    save_file(tensors, temporary, metadata={"target": target})
    temporary.replace(path)


def load(path: Path, *, target: str = "") -> Conversations:
    """Read a file written by `save`.

    Raises:
        ValueError: another model answered.
    """
    with safe_open(path, framework="np") as file:
        marked = (file.metadata() or {}).get("target", "")
    if target and marked and marked != target:
        raise ValueError(f"{path} holds the answers of another model; give another --data, or remove the file")
    tensors = load_file(path)
    return Conversations(
        tokens_N=tensors["tokens"].astype(np.int32),
        starts_C=np.concatenate(([0], np.cumsum(tensors["lengths"], dtype=np.int64))).astype(np.int64),
        prompts_C=tensors["prompts"],
        cut_C=tensors["cut"],
    )


def until_loop(answer: NDArray[np.int32]) -> int:
    """Tokens before an answer's first loop; all where nothing repeats."""
    start = loop_start(answer.tolist())
    return len(answer) if start is None else start


def without_loop(conversation: Conversation, *, tail: int) -> Conversation:
    """Cut an answer `tail` tokens into its first loop."""
    answer = np.asarray(conversation.tokens[conversation.num_prompt :], dtype=np.int32)
    keep = until_loop(answer) + tail
    if keep >= len(answer):
        return conversation
    return Conversation(
        tokens=conversation.tokens[: conversation.num_prompt + keep], num_prompt=conversation.num_prompt, cut=True
    )
