"""The accept length that training prints is the one that serving gets."""

from collections.abc import Sequence

import pytest

from slipstream.config.sampling import SamplingParams
from slipstream.config.speculation import Speculation, speculation
from slipstream.draft.checkpoint import LoadedDraft
from slipstream.flow.output import Answer, Statistics
from slipstream.models.decoder import Decoder
from slipstream.train.accept import measure
from slipstream.train.conversations import Conversation, Conversations, pack
from slipstream.train.journal import Journal
from slipstream.train.loop import Trainer
from slipstream.train.options import LoopOptions, LossOptions
from slipstream.train.teacher import DraftVocabulary
from tests.tiny_engine import run_all, some_prompts, tiny_draft, tiny_engine, tiny_target

STEPS = 4
PROMPTS = some_prompts(10)
PARAMS = SamplingParams(max_tokens=40)


def serve(target: Decoder, draft: LoadedDraft, shape: Speculation) -> list[Answer]:
    return run_all(tiny_engine(shape, target=target, draft=draft), PROMPTS, PARAMS)


def conversations(answers: Sequence[Answer]) -> Conversations:
    return pack(
        Conversation(tokens=[*prompt, *answer.tokens], num_prompt=len(prompt))
        for prompt, answer in zip(PROMPTS, answers, strict=True)
    )


def trained(target: Decoder, data: Conversations, vocabulary: DraftVocabulary) -> LoadedDraft:
    """A draft that has learnt the answers by heart, more or less."""
    draft = tiny_draft(target)
    draft.model.embed.weight.requires_grad_(False)
    Trainer(
        draft=draft.model,
        target=target,
        vocabulary=vocabulary,
        conversations=data,
        loss=LossOptions(steps=STEPS),
        loop=LoopOptions(steps=60, lr=1e-2, batch_tokens=4096, log_every=1000),
        journal=Journal(None, say=lambda text: None),
    ).run()
    return draft


def test_the_walked_accept_length_is_real_decodings() -> None:
    target = tiny_target()
    draft = tiny_draft(target)
    data = conversations(serve(tiny_target(), tiny_draft(target), speculation(0)))
    vocabulary = DraftVocabulary.of(draft.target_ids.numpy(), target_vocab_size=120, device=draft.target_ids.device)
    draft = trained(target, data, vocabulary)
    target.capture(draft.model.config.captures)
    walked = measure(draft.model.eval(), target, data, vocabulary, steps=STEPS, batch_tokens=512).whole

    served = Statistics()
    for answer in serve(tiny_target(), draft, speculation(STEPS)):
        served.add(answer.statistics)
    assert served.accept_length > 1.5
    assert walked.accept_length == pytest.approx(served.accept_length, rel=0.02)
    assert walked.by_position == pytest.approx(served.acceptance_by_position, abs=0.03)
