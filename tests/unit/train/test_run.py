"""From prompts to a draft on disk, on a tiny checkpoint; and features against transformers."""

from dataclasses import replace

import pytest
import torch

from slipstream.cli.train import PANELS, settle
from slipstream.draft.checkpoint import load_draft
from slipstream.text.tokenizer import load_tokenizer
from slipstream.train.accept import measure
from slipstream.train.conversations import Conversation, pack
from slipstream.train.data import cap_of, choose_prompts, messages_of
from slipstream.train.objective import run_target
from slipstream.train.options import DataOptions, DraftOptions, Mask
from slipstream.train.regenerate import user_header
from slipstream.train.run import draft_vocabulary, held_out_data, make_conversations, run
from slipstream.train.target import open_target
from slipstream.train.teacher import DraftVocabulary
from tests.tiny import tiny_model

WORDS = ["red", "green", "blue", "one", "two", "three", "is", "was", "a", "the", "cat", "dog"]
TEMPLATE = (
    "{% for m in messages %}<s> {{ m['role'] }} {{ m['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant {% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny checkpoint with a tokenizer of whole words and a chat template."""
    import json

    import tokenizers

    path = tmp_path_factory.mktemp("model")
    tiny_model("llama", initializer_range=0.6).save_pretrained(path)
    names = ["<unk>", "<s>", "</s>", "user", "assistant", *WORDS]
    words = tokenizers.models.WordLevel({word: index for index, word in enumerate(names)}, unk_token="<unk>")
    raw = tokenizers.Tokenizer(words)
    raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    raw.save(str(path / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "some.jsonl"
    lines = [f'{{"prompt": "the {a} {b}", "set": "mc_{a}"}}' for a in WORDS[:3] for b in WORDS]
    path.write_text("\n".join([*lines, lines[0]]))
    return path


def chosen(model, out, **given):
    """The command line's defaults, with some values given."""
    values = {flag.name.replace("-", "_"): flag.default for flags in PANELS.values() for flag in flags}
    small = {"draft_vocab": 32, "batch_tokens": 256, "answer_tokens": 12, "log_every": 2, "max_eval": 6, "lr": 3e-3}
    return settle({**values, **small, "model": str(model), "out": out, "device": "cpu", **given})


def test_a_run_leaves_a_draft_that_loads_and_accepts_as_measured(model, prompts, tmp_path):
    options = chosen(model, tmp_path, prompts=[prompts], eval_prompts=[prompts], steps=30)
    measured = run(options, say=lambda text: None)
    opened = open_target(str(model), device=torch.device("cpu"), dtype=torch.float32)
    loaded = load_draft(
        tmp_path / "draft",
        target=opened.model.config,
        embedding=opened.model.embed.weight,
        max_position=opened.model.config.max_position,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    assert set(opened.stop_ids) <= set(loaded.target_ids.tolist())
    opened.model.capture(loaded.model.config.captures)
    ids = loaded.target_ids.numpy()
    vocabulary = DraftVocabulary.of(ids, target_vocab_size=96, device=torch.device("cpu"))
    held_out = held_out_data(opened, prompts, options, say=print)
    again = measure(loaded.model, opened.model, held_out, vocabulary, steps=4, batch_tokens=256)
    assert again.whole.accept_length == pytest.approx(measured["some"].whole.accept_length, rel=0.02)
    card = (tmp_path / "draft" / "README.md").read_text()
    assert "accept length" in card
    assert (tmp_path / "draft" / "curve.png").is_file()


def test_a_second_run_reuses_the_conversations_and_the_map(model, prompts, tmp_path):
    said = []
    run(chosen(model, tmp_path, prompts=[prompts], steps=2), say=said.append)
    before = (tmp_path / "conversations.safetensors").read_bytes()
    run(chosen(model, tmp_path, steps=4, resume=True, draft_vocab=32), say=said.append)
    assert (tmp_path / "conversations.safetensors").read_bytes() == before
    assert sum("draft vocabulary" in line for line in said) == 1


def test_user_turns_can_come_from_the_target_itself(model, tmp_path):
    said = []
    run(chosen(model, tmp_path, self_prompts=40, steps=1, temperatures="0"), say=said.append)
    assert "self-written" in said[0]


def test_a_folder_that_holds_a_run_is_not_trained_into_again(model, prompts, tmp_path):
    run(chosen(model, tmp_path, prompts=[prompts], steps=1), say=lambda text: None)
    with pytest.raises(ValueError, match="--resume"):
        run(chosen(model, tmp_path, prompts=[prompts], steps=1), say=lambda text: None)


def test_a_map_of_the_first_ids_is_refused_before_training(model):
    opened = open_target(str(model), device=torch.device("cpu"), dtype=torch.float32)
    said = pack([Conversation(tokens=[5, 6, 7, 2], num_prompt=1)])
    with pytest.raises(ValueError, match="--draft-vocab, up to 96"):
        draft_vocabulary(opened, said, DraftOptions(vocab_size=95), say=print)
    assert len(draft_vocabulary(opened, said, DraftOptions(vocab_size=96), say=print)) == 96


def test_answers_that_pass_the_context_are_refused(model, prompts, tmp_path):
    with pytest.raises(ValueError, match="context of 256"):
        run(chosen(model, tmp_path, prompts=[prompts], steps=1, answer_tokens=256), say=lambda text: None)


def test_a_target_that_answers_nothing_is_refused(model, prompts, tmp_path):
    opened = open_target(str(model), device=torch.device("cpu"), dtype=torch.float32)
    mute = replace(opened, stop_ids=tuple(range(96)))
    with pytest.raises(ValueError, match="ended every answer"):
        make_conversations(mute, chosen(model, tmp_path, prompts=[prompts]).data, say=print)


def test_held_out_files_of_one_name_are_refused(model, prompts, tmp_path):
    with pytest.raises(ValueError, match="have one name"):
        chosen(model, tmp_path, eval_prompts=[prompts, tmp_path / prompts.name])


def test_no_prompts_at_all_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match="no prompt is left"):
        run(chosen(model, tmp_path, steps=1), say=print)


def test_the_user_header_is_what_stands_before_a_users_text(model):
    opened = open_target(str(model), device=torch.device("cpu"), dtype=torch.float32)
    assert user_header(opened.template, opened.tokenizer) == load_tokenizer(model).encode("<s> user ")


def test_sets_are_capped_and_repeats_dropped(prompts):
    options = DataOptions(caps=(("mc_", 4), ("mc_red", 2)))
    kept = choose_prompts([prompts, prompts], options)
    assert [sum(entry.set == f"mc_{word}" for entry in kept) for word in WORDS[:3]] == [2, 4, 4]
    assert len({str(messages_of(entry)) for entry in kept}) == len(kept)
    assert cap_of("other", options.caps) is None


def test_features_are_transformers_hidden_states(model):
    reference = tiny_model("llama", initializer_range=0.6)
    opened = open_target(str(model), device=torch.device("cpu"), dtype=torch.float32)
    opened.model.capture((2, 4, 5))
    tokens_BT = torch.randint(3, 96, (2, 9), generator=torch.Generator().manual_seed(0))
    features = run_target(opened.model, tokens_BT).features_TF.view(2, 9, 3, -1)
    with torch.no_grad():
        states = reference(tokens_BT, output_hidden_states=True).hidden_states
    for index, layer in enumerate((2, 4, 5)):
        torch.testing.assert_close(features[:, :, index], states[layer], rtol=1e-3, atol=1e-3)


def test_the_command_line_settles_every_option(model, tmp_path):
    options = chosen(model, tmp_path, cap=["t0_p3=7000", "mc_=500"], mask=Mask.EAGLE, temperatures="0,1")
    assert options.data.caps == (("t0_p3", 7000), ("mc_", 500))
    assert options.data.temperatures == (0.0, 1.0)
    assert options.loss.mask is Mask.EAGLE
    assert options.loop.epochs == 4.0
    with pytest.raises(ValueError, match="--cap"):
        chosen(model, tmp_path, cap=["many"])
