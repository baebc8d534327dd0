"""Build the tokenizer that a GGUF file's metadata describes, as the text of a tokenizer.json."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from slipstream.weights.gguf_header import GgufHeader

UNDERLINE = "\u2581"  # how SentencePiece writes a space
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
QWEN2 = ("qwen2", "deepseek-r1-qwen")
GPT2 = ("gpt-2", "default")
SMOLLM = ("smollm",)
SPLITTERS = (*SMOLLM, *QWEN2, *LLAMA3, *GPT2)


class TokenKind(IntEnum):
    """What llama.cpp says a token is."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # special: hidden from text
    USER_DEFINED = 4  # matched whole, but part of the text
    UNUSED = 5  # pads the table to a round size
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """A file's tokens, with what it says of each."""

    header: GgufHeader
    tokens: Sequence[str]
    kinds: Sequence[int]

    def ids(self) -> dict[str, int]:
        """Map each token in use to its id; the first wins where a file repeats one."""
        found: dict[str, int] = {}
        for index, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True)):
            if kind != TokenKind.UNUSED:
                found.setdefault(token, index)
        return found

    def of(self, kind: TokenKind) -> list[str]:
        """List the tokens of a kind."""
        return [token for token, found in zip(self.tokens, self.kinds, strict=True) if found == kind]


def tokenizer_json(header: GgufHeader) -> str:
    """Give the tokenizer as the `tokenizers` package writes it."""
    vocabulary = _vocabulary(header)
    family = header.require("tokenizer.ggml.model")
    if family == "gpt2":
        tokenizer = _byte_level(vocabulary)
    elif family == "llama":
        tokenizer = _sentencepiece(vocabulary)
    else:
        raise ValueError(f"{header.path} has a tokenizer of the kind {family!r}; the kinds read are gpt2 and llama")
    _add_whole_tokens(tokenizer, vocabulary)
    return tokenizer.to_str()


def chat_template(header: GgufHeader) -> str | None:
    """Give the chat template, if the file carries one."""
    template = header.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


def _vocabulary(header: GgufHeader) -> _Vocabulary:
    tokens = header.require("tokenizer.ggml.tokens")
    kinds = header.metadata.get("tokenizer.ggml.token_type", [TokenKind.NORMAL] * len(tokens))
    if len(kinds) != len(tokens):
        raise ValueError(f"{header.path} has {len(tokens)} tokens but {len(kinds)} token types; download it again")
    return _Vocabulary(header=header, tokens=tokens, kinds=kinds)


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    """Build a tokenizer that merges bytes, as GPT-2's does, with the file's own way to split words."""
    header = vocabulary.header
    splitter = header.metadata.get("tokenizer.ggml.pre", "default")
    if splitter not in SPLITTERS:
        raise ValueError(f"{header.path} splits words as {splitter!r}; the ways known are {', '.join(SPLITTERS)}")
    tokenizer = _merging(vocabulary, _stored_merges(header), ignore_merges=splitter in LLAMA3)
    _attach(
        tokenizer,
        pre_tokenizer=_split(splitter),
        decoder=decoders.ByteLevel(),
        normalizer=normalizers.NFC() if splitter in QWEN2 else None,
        post_processor=_begin(vocabulary, default=splitter in LLAMA3) or processors.ByteLevel(trim_offsets=False),
    )
    return tokenizer


def _merging(vocabulary: _Vocabulary, merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
    """Build the bare model: a vocabulary and the order in which its pieces merge."""
    try:
        return Tokenizer(BPE(vocab=vocabulary.ids(), merges=merges, **options))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(f"{vocabulary.header.path} has a broken tokenizer ({error}); download it again") from None


def _split(splitter: str) -> Any:
    """Give the pre-tokenizer for llama.cpp's name of it."""
    if splitter in GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if splitter in SMOLLM:
        digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        return pre_tokenizers.Sequence([digits, words])
    pattern = WORDS % ("{1,3}" if splitter in LLAMA3 else "")
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _stored_merges(header: GgufHeader) -> list[tuple[str, str]]:
    """Read the merges, two tokens with a space between."""
    pairs = [merge.partition(" ")[::2] for merge in header.require("tokenizer.ggml.merges")]
    return [(left, right) for left, right in pairs]


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    """Build a tokenizer that merges characters by score and falls back to bytes, as SentencePiece does."""
    unknown = vocabulary.of(TokenKind.UNKNOWN)
    tokenizer = _merging(
        vocabulary,
        _scored_merges(vocabulary),
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    prefixed = vocabulary.header.metadata.get("tokenizer.ggml.add_space_prefix", True)
    steps = [decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse()]
    _attach(
        tokenizer,
        pre_tokenizer=pre_tokenizers.Metaspace(
            replacement=UNDERLINE, prepend_scheme="first" if prefixed else "never", split=False
        ),
        decoder=decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps),
        normalizer=None,
        post_processor=_begin(vocabulary, default=True),
    )
    return tokenizer


def _scored_merges(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Recover the merges: every way to make a token out of two others, the best-scored token first."""
    ids = vocabulary.ids()
    scores = vocabulary.header.require("tokenizer.ggml.scores")
    if len(scores) != len(vocabulary.tokens):
        raise ValueError(
            f"{vocabulary.header.path} has {len(vocabulary.tokens)} tokens but {len(scores)} scores; download it again"
        )
    found: list[tuple[float, tuple[str, str]]] = []
    for token, index in ids.items():
        cuts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        found += [(scores[index], (left, right)) for left, right in cuts if left in ids and right in ids]
    found.sort(key=lambda entry: (entry[0], len(entry[1][0]), len(entry[1][1])), reverse=True)
    return [pair for _, pair in found]


def _begin(vocabulary: _Vocabulary, *, default: bool) -> Any:
    """Give the step that puts the first token before a text, where the file asks for one."""
    metadata = vocabulary.header.metadata
    index = metadata.get("tokenizer.ggml.bos_token_id")
    if index is None or not metadata.get("tokenizer.ggml.add_bos_token", default):
        return None
    if index >= len(vocabulary.tokens):
        raise ValueError(f"{vocabulary.header.path} begins texts with token {index}, which it lacks; download it again")
    token = vocabulary.tokens[index]
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, index)]
    )


def _attach(tokenizer: Tokenizer, *, pre_tokenizer: Any, decoder: Any, normalizer: Any, post_processor: Any) -> None:
    """Set the parts around a tokenizer's model."""
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if post_processor is not None:
        tokenizer.post_processor = post_processor


def _add_whole_tokens(tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    """Mark the tokens that are matched whole, before words are split."""
    control = [*vocabulary.of(TokenKind.CONTROL), *vocabulary.of(TokenKind.UNKNOWN)]
    plain = vocabulary.of(TokenKind.USER_DEFINED)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in plain])
