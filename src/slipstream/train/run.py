"""A training run from prompts to a draft: data, train, measure, export."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.train import conversations as stored
from slipstream.train import state as states
from slipstream.train.accept import Measured
from slipstream.train.conversations import Conversation, Conversations, pack
from slipstream.train.data import choose_prompts, encode_all, messages_of, short_enough, user_turn
from slipstream.train.export import export
from slipstream.train.initialise import new_draft
from slipstream.train.journal import Journal
from slipstream.train.loop import Trainer
from slipstream.train.options import DataOptions, DraftOptions, RunOptions
from slipstream.train.regenerate import answer_prompts, with_greedy_answers, write_prompts
from slipstream.train.target import OpenTarget, open_target
from slipstream.train.teacher import DraftVocabulary
from slipstream.train.words import choose_ids, coverage

Say = Callable[[str], None]


def run(options: RunOptions, *, say: Say = print) -> dict[str, Measured]:
    """Do all stages; those whose result is there already are skipped.

    Raises:
        ValueError: an input is missing or does not fit; the sentence says what to change.
    """
    refuse_overwriting(options)
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = open_target(options.model, device=device, dtype=dtype)
    training = training_data(target, options, say=say)
    held_out = {file.stem: held_out_data(target, file, options, say=say) for file in options.eval_prompts}
    if options.data_only:
        return {}
    trainer = make_trainer(target, training, held_out, options, say=say)
    measured = trainer.run()
    export(
        options.out / "draft",
        trainer.draft,
        trainer.vocabulary,
        target=target.model.config,
        target_name=target_name(options.model),
        recipe=recipe(options, trainer),
        measured=measured,
        journal=options.out / "train.jsonl",
    )
    say(f"the draft is in {options.out / 'draft'}")
    return measured


def refuse_overwriting(options: RunOptions) -> None:
    """Keep two runs out of one folder: the second would take the first one's log and checkpoint.

    Raises:
        ValueError: the folder holds a run that is not to be resumed.
    """
    if not (options.resume or options.data_only) and (options.out / states.FILE).is_file():
        raise ValueError(f"{options.out} holds a run already; pass --resume to continue it, or another --out")


def training_data(target: OpenTarget, options: RunOptions, *, say: Say) -> Conversations:
    """The run's conversations, made unless they are there."""
    file = (options.conversations or options.out) / stored.FILE
    if not file.is_file():
        stored.save(pack(make_conversations(target, options.data, say=say)), file, target=target.mark)
    found = stored.load(file, target=target.mark)
    say(f"{len(found)} conversations, {found.num_answer_tokens:,} answer tokens, {int(found.cut_C.sum())} cut: {file}")
    return found


def make_conversations(target: OpenTarget, data: DataOptions, *, say: Say) -> list[Conversation]:
    """Choose prompts, add the target's own, and let it answer."""
    texts = [messages_of(entry) for entry in choose_prompts(data.prompts, data)] if data.prompts else []
    if data.self_prompts:
        if target.template is None:
            raise ValueError("this model has no chat template, so it cannot write user turns; leave out --self-prompts")
        texts += [
            [user_turn(text)] for text in write_prompts(target.model, target.tokenizer, target.template, data, say=say)
        ]
    prompts = short_enough(encode_all(texts, target.tokenizer, target.template), data)
    if not prompts:
        raise ValueError("no prompt is left to answer; check --prompts, --cap and --max-prompt-tokens")
    longest, context = max(map(len, prompts)), target.model.config.max_position
    if longest + data.answer_tokens > context:
        raise ValueError(
            f"a prompt of {longest} tokens and {data.answer_tokens} to answer pass the model's context of {context};"
            " lower --max-prompt-tokens or --answer-tokens"
        )
    say(f"{len(prompts)} prompts of at most {data.max_prompt_tokens} tokens")
    answered = answer_prompts(target.model, prompts, data, stop_ids=target.stop_ids, say=say)
    if not answered:
        raise ValueError("the target ended every answer at its first token; check its chat template, and --prompts")
    return answered


def held_out_data(target: OpenTarget, file: Path, options: RunOptions, *, say: Say) -> Conversations:
    """Greedy answers to a held-out set, made unless they are there."""
    kept = (options.conversations or options.out) / "held_out" / f"{file.stem}.safetensors"
    if not kept.is_file():
        data = replace(with_greedy_answers(options.data), prompts=(file,), caps=(), max_prompts=options.max_eval)
        data = replace(data, self_prompts=0)
        stored.save(pack(make_conversations(target, data, say=say)), kept, target=target.mark)
    return stored.load(kept, target=target.mark)


def make_trainer(
    target: OpenTarget, training: Conversations, held_out: Mapping[str, Conversations], options: RunOptions, *, say: Say
) -> Trainer:
    """A new draft, or the one of the checkpoint with its own vocabulary map."""
    state_path = options.out / states.FILE
    state = states.read_state(state_path) if options.resume else None
    ids_V = draft_vocabulary(target, training, options.draft, say=say) if state is None else state["target_ids"].numpy()
    device = target.model.embed.weight.device
    vocabulary = DraftVocabulary.of(ids_V, target_vocab_size=target.model.config.vocab_size, device=device)
    draft = new_draft(
        target.model,
        vocabulary.ids_V,
        options.draft,
        max_position=target.model.config.max_position,
        seed=options.loop.seed,
    )
    trainer = Trainer(
        draft=draft,
        target=target.model,
        vocabulary=vocabulary,
        conversations=training,
        loss=options.loss,
        loop=options.loop,
        journal=Journal(options.out / "train.jsonl", say=say),
        state_path=state_path,
        held_out=held_out,
    )
    if state is not None:
        trainer.resume()
    return trainer


def draft_vocabulary(
    target: OpenTarget, training: Conversations, options: DraftOptions, *, say: Say
) -> NDArray[np.int64]:
    """The most frequent ids of the answers, turn ends always among them.

    Raises:
        ValueError: a map that could not be exported, said before the training and not after it.
    """
    counts_W = training.answer_counts(target.model.config.vocab_size)
    ids_V = choose_ids(counts_W, size=options.vocab_size, always=target.stop_ids)
    if len(ids_V) < len(counts_W) and ids_V[-1] == len(ids_V) - 1:
        raise ValueError(
            f"the {len(ids_V)} most frequent ids are the first ones, a map that no reader can tell from a missing one;"
            f" change --draft-vocab, up to {len(counts_W)} for all"
        )
    say(f"a draft vocabulary of {len(ids_V)} covers {coverage(counts_W, ids_V):.2%} of the answers' tokens")
    return ids_V


def recipe(options: RunOptions, trainer: Trainer) -> dict[str, Any]:
    """What the card says about the run."""
    found: dict[str, Any] = {
        "target": target_name(options.model),
        "conversations": f"{len(trainer.conversations):,}",
        "answer tokens": f"{trainer.conversations.num_answer_tokens:,}",
        "steps": trainer.progress.step,
        "answer tokens seen": f"{trainer.progress.answer_tokens:,}",
        "minutes of training": f"{trainer.progress.seconds / 60:.1f}",
        "device": device_name(trainer.device),
    }
    for name in ("data", "draft", "loss", "loop"):
        chosen = asdict(getattr(options, name))
        found |= {
            f"{name}: {key.replace('_', ' ')}": _plain(value) for key, value in chosen.items() if value is not None
        }
    return found


def target_name(model: str) -> str:
    """What a card calls the target: a path's last part, any other name whole."""
    return Path(model).name if Path(model).exists() else model


def device_name(device: torch.device) -> str:
    """The accelerator's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return ", ".join(str(_plain(item)) for item in value)
    return value.name if isinstance(value, Path) else value
