"""What requests ask: prompts of a file, or random ones of a given length."""

import random
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from slipstream.text.prompts import PromptEntry

Ask = Mapping[str, Any]  # the part of a body that holds the prompt

# fmt: off
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program", "question", "work", "government", "number", "night", "point", "home",
    "water", "room", "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book",
    "eye", "job", "word", "business", "issue", "side", "kind", "head", "house", "service", "friend", "father",
    "power", "hour", "game", "line", "end", "member", "law", "car", "city", "community",
)
# fmt: on


class Endpoint(Enum):
    """Where requests go."""

    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        """Its place on the server."""
        return "/v1/completions" if self is Endpoint.COMPLETIONS else "/v1/chat/completions"


def endpoint_of(name: str) -> Endpoint:
    """Raises ValueError for one that there is not."""
    try:
        return Endpoint(name)
    except ValueError:
        raise ValueError(f"--endpoint {name} is unknown; use completions or chat") from None


def from_entries(entries: Sequence[PromptEntry], count: int, endpoint: Endpoint) -> list[Ask]:
    """So many prompts in their order, from the first again when they are used up.

    Raises:
        ValueError: a conversation for the endpoint of texts.
    """
    taken = [entries[place % len(entries)] for place in range(count)]
    if endpoint is Endpoint.CHAT:
        return [{"messages": entry.conversation} for entry in taken]
    if any(entry.messages is not None for entry in taken):
        raise ValueError("a prompt is a conversation, which /v1/completions does not take; use --endpoint chat")
    return [{"prompt": entry.prompt} for entry in taken]


def random_words(length: int, count: int, endpoint: Endpoint, *, seed: int) -> list[Ask]:
    """Prompts of so many short English words, each about a token; no two begin alike."""
    source = random.Random(seed)
    texts = [" ".join(source.choices(WORDS, k=length)) for _ in range(count)]
    if endpoint is Endpoint.CHAT:
        return [{"messages": [{"role": "user", "content": text}]} for text in texts]
    return [{"prompt": text} for text in texts]


def random_ids(length: int, count: int, vocab_size: int, *, seed: int) -> list[Ask]:
    """Prompts of exactly so many token ids below vocab_size."""
    source = random.Random(seed)
    return [{"prompt": [source.randrange(vocab_size) for _ in range(length)]} for _ in range(count)]
