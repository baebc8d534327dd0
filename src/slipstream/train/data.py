"""Read prompt files, choose among them and turn them into ids."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slipstream.text.prompts import PromptEntry, read_prompts
from slipstream.text.template import ChatTemplate
from slipstream.text.tokenizer import Tokenizer
from slipstream.train.options import DataOptions

Messages = Sequence[dict[str, Any]]


def choose_prompts(files: Iterable[Path], options: DataOptions) -> list[PromptEntry]:
    """Prompts of all files: each once, at most so many of each set, shuffled by the seed.

    Raises:
        ValueError: no prompt is left.
    """
    entries = [entry for file in files for entry in read_prompts(file)]
    entries = list({_text(entry): entry for entry in reversed(entries)}.values())[::-1]
    random.Random(options.seed).shuffle(entries)
    taken: Counter[str] = Counter()
    kept = []
    for entry in entries:
        name = entry.set or ""
        cap = cap_of(name, options.caps)
        if cap is None or taken[name] < cap:
            taken[name] += 1
            kept.append(entry)
    if not kept:
        raise ValueError("the prompt files hold no prompt after the caps; check --prompts and --cap")
    return kept[: options.max_prompts]


def cap_of(name: str, caps: Sequence[tuple[str, int]]) -> int | None:
    """Most prompts of a set: by its own name, else by a name ending in `_` that it begins with."""
    by_name = dict(caps)
    if name in by_name:
        return by_name[name]
    return next((most for prefix, most in caps if prefix.endswith("_") and name.startswith(prefix)), None)


def encode_all(
    conversations: Iterable[Messages], tokenizer: Tokenizer, template: ChatTemplate | None
) -> list[list[int]]:
    """Ids of each conversation up to where the answer begins, as serving makes them; on every core at once."""
    if template is None:
        texts = ["\n".join(str(message["content"]) for message in messages) for messages in conversations]
        return [found.ids for found in tokenizer.raw.encode_batch(texts)]
    texts = [template.render(list(messages), add_generation_prompt=True) for messages in conversations]
    return [found.ids for found in tokenizer.raw.encode_batch(texts, add_special_tokens=False)]


def messages_of(entry: PromptEntry) -> Messages:
    """An entry's conversation; a bare prompt is one user turn."""
    return entry.messages or [user_turn(entry.prompt or "")]


def user_turn(text: str) -> dict[str, str]:
    """One message from the user."""
    return {"role": "user", "content": text}


def short_enough(prompts: Iterable[list[int]], options: DataOptions) -> list[list[int]]:
    """Drop prompts that are too long, empty, or the same ids as another."""
    kept = (tuple(ids) for ids in prompts if 0 < len(ids) <= options.max_prompt_tokens)
    return [list(ids) for ids in dict.fromkeys(kept)]


def _text(entry: PromptEntry) -> str:
    return "\n".join(str(message["content"]) for message in messages_of(entry))
