"""From prompts to conversations: the target writes every answer, and user turns too where asked (Xu et al. 2024)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from slipstream.models.decoder import Decoder
from slipstream.telemetry.progress import progress
from slipstream.text.template import ChatTemplate
from slipstream.text.tokenizer import Tokenizer
from slipstream.train.answer import Answerer, AnswerOptions
from slipstream.train.conversations import Conversation, without_loop
from slipstream.train.options import DataOptions

SENTINEL = "\x01user\x01"
TURN_TOKENS = 200  # most tokens of a self-written turn while it is drawn
LONGEST_TURN = 160  # and of one that is kept
TURN_MIN_P = 0.02
TURN_TEMPERATURE = 1.0

Say = Callable[[str], None]


def answer_prompts(
    target: Decoder, prompts: Sequence[list[int]], options: DataOptions, *, stop_ids: tuple[int, ...], say: Say = print
) -> list[Conversation]:
    """The target's answers, temperatures taken in turn; the empty ones are dropped."""
    settings = AnswerOptions(
        max_tokens=options.answer_tokens, batch=options.answer_batch, stop_ids=stop_ids, seed=options.seed
    )
    cycle = [options.temperatures[index % len(options.temperatures)] for index in range(len(prompts))]
    with progress("answering", None, unit="tokens") as meter:
        found = Answerer(target, settings).answer(prompts, cycle, on_tokens=meter.advance)
    kept = [conversation for conversation in found if len(conversation.tokens) > conversation.num_prompt + 1]
    if options.loop_tail is not None:
        kept = [without_loop(conversation, tail=options.loop_tail) for conversation in kept]
    num_cut = sum(conversation.cut for conversation in kept)
    say(f"{len(kept)} answers; {num_cut} are cut; {len(found) - len(kept)} empty")
    return kept


def write_prompts(
    target: Decoder, tokenizer: Tokenizer, template: ChatTemplate, options: DataOptions, *, say: Say = print
) -> list[str]:
    """User turns that the target draws after its own user header: finished, short, each once."""
    header, stop_ids = user_header(template, tokenizer), tuple(sorted(tokenizer.eos_ids))
    settings = AnswerOptions(
        max_tokens=TURN_TOKENS,
        batch=options.answer_batch,
        stop_ids=stop_ids,
        min_p=TURN_MIN_P,
        seed=options.seed + 1,
    )
    with progress("writing prompts", None, unit="tokens") as meter:
        drawn = Answerer(target, settings).answer(
            [header] * options.self_prompts, [TURN_TEMPERATURE] * options.self_prompts, on_tokens=meter.advance
        )
    turns = [turn_text(conversation, tokenizer) for conversation in drawn]
    kept = list(dict.fromkeys(turn for turn in turns if turn))
    say(f"{len(kept)} of {options.self_prompts} self-written prompts are finished, short and distinct")
    return kept


def turn_text(conversation: Conversation, tokenizer: Tokenizer) -> str:
    """The text of a finished, short turn; empty for any other."""
    ids = conversation.tokens[conversation.num_prompt : -1]
    if conversation.cut or not 0 < len(ids) <= LONGEST_TURN:
        return ""
    if any(token in tokenizer.special_ids for token in ids):
        return ""
    return tokenizer.decode(ids).strip()


def user_header(template: ChatTemplate, tokenizer: Tokenizer) -> list[int]:
    """Ids of everything before a user's text.

    Raises:
        ValueError: the template changes the user's text.
    """
    text = template.render([{"role": "user", "content": SENTINEL}], add_generation_prompt=True)
    before, found, _ = text.partition(SENTINEL)
    if not found:
        raise ValueError(
            "the chat template changes the user's text, so no user header can be cut out; leave out --self-prompts"
        )
    return tokenizer.encode(before, add_special_tokens=False)


def with_greedy_answers(options: DataOptions) -> DataOptions:
    """The options under which held-out prompts are answered."""
    return replace(options, temperatures=(0.0,), loop_tail=None)
