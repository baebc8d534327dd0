"""Text at the HTTP door: conversations to prompts, prompts to ids, ids to what an answer shows.

Long texts are handled on another thread, so that no stream waits for them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from slipstream.config.hf import model_config
from slipstream.serve.http.errors import bad_request
from slipstream.serve.http.settings import EngineSettings
from slipstream.text.detokenize import Detokenizer
from slipstream.text.template import ChatTemplate, load_template
from slipstream.text.tokenizer import Tokenizer, load_tokenizer
from slipstream.weights.folder import read_config

LONG_CHARS = 4096
REPLACEMENT = "\ufffd"

Result = TypeVar("Result")


class Texts:
    """A model's tokenizer and chat template."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, *, vocab_size: int) -> None:
        self.tokenizer, self.template, self.vocab_size = tokenizer, template, vocab_size

    @staticmethod
    def load(settings: EngineSettings) -> "Texts":
        """Read them from the model's folder or .gguf file.

        Raises:
            ValueError: there is no tokenizer, or the template cannot be read.
        """
        tokenizer, template = load_tokenizer(settings.model), load_template(settings.model)
        if settings.chat_template is not None:
            template = _other_template(settings.chat_template, tokenizer)
        return Texts(tokenizer, template, vocab_size=model_config(read_config(settings.model)).vocab_size)

    @property
    def template_source(self) -> str:
        """The template, for those who look what it knows; empty without one."""
        return "" if self.template is None else self.template.source

    async def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None, **kwargs: Any
    ) -> str:
        """A conversation as the model reads it.

        Raises:
            ApiError: there is no template, or it refuses the messages.
        """
        template = self.template
        if template is None:
            raise bad_request(
                "this model has no chat template; use /v1/completions, or start the server with --chat-template",
                param="messages",
            )
        num_chars = sum(len(str(each)) for each in messages)
        try:
            return await aside(num_chars, lambda: template.render(messages, tools=tools, **kwargs))
        except ValueError as error:
            raise bad_request(str(error), param="messages") from None

    async def encode(self, text: str, *, add_special_tokens: bool, param: str = "prompt") -> list[int]:
        """Ids of a text.

        Raises:
            ApiError: it is no text, or its ids are not the model's.
        """
        check_text(text, param=param)
        ids = await aside(len(text), lambda: self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        return self.checked(ids, param=param)

    def checked(self, ids: list[int], *, param: str = "prompt") -> list[int]:
        """The same ids.

        Raises:
            ApiError: the model does not know one.
        """
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            bad = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise bad_request(f"token id {bad} is outside the model's vocabulary of {self.vocab_size}", param=param)
        return ids

    async def decode(self, ids: list[int]) -> str:
        """The text of a prompt's ids, with its special tokens."""
        return await aside(len(ids), lambda: self.tokenizer.decode(ids, skip_special_tokens=False))

    def token_text(self, token: int) -> str:
        """One token's text by itself."""
        return self.tokenizer.decode([token], skip_special_tokens=False)

    def offsets(self, ids: Sequence[int], text: str) -> list[int]:
        """Where in a text each of its tokens begins; what the text does not show, such as a BOS, begins at 0."""
        stream, ends = Detokenizer(self.tokenizer, skip_special_tokens=False), [0]
        for token in ids:
            ends.append(ends[-1] + len(stream.push([token])))
        hidden = max(0, ends[-1] + len(stream.finish()) - len(text))
        return [min(max(0, end - hidden), len(text)) for end in ends[:-1]]

    def token_bytes(self, token: int) -> list[int]:
        """One token's bytes, of which a character may need several tokens'."""
        text = self.token_text(token)
        if REPLACEMENT not in text:
            return list(text.encode())
        piece = self.tokenizer.raw.id_to_token(token) or ""
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return [int(piece[3:5], 16)]
        found = [BYTES.get(character) for character in piece]
        known = [value for value in found if value is not None]
        return known if len(known) == len(found) else list(text.encode())


def check_text(text: str, *, param: str) -> None:
    """Raises ApiError for what JSON can hold and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise bad_request(f"{param} holds half a surrogate pair, which is no character", param=param) from None


async def aside(size: int, work: Callable[[], Result]) -> Result:
    """Do what takes a while on another thread; size: in characters, more or less."""
    return await asyncio.to_thread(work) if size > LONG_CHARS else work()


def _other_template(path: Path, tokenizer: Tokenizer) -> ChatTemplate:
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"--chat-template {path} cannot be read; give a Jinja file") from None

    def text_of(index: int | None) -> str | None:
        return None if index is None else tokenizer.raw.id_to_token(index)

    return ChatTemplate(
        source, bos_token=text_of(tokenizer.bos_id), eos_token=text_of(min(tokenizer.eos_ids, default=None))
    )


def _byte_alphabet() -> dict[str, int]:
    """Characters that byte-level tokenizers (GPT-2's and its heirs) write bytes as."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in plain]
    return {chr(value): value for value in plain} | {chr(256 + place): value for place, value in enumerate(others)}


BYTES = _byte_alphabet()
