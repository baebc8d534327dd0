"""Bad input ends in one sentence that begins with error:, exit code 2, nothing on stdout and no traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.unit.cli.world import Cli, Outcome, World

Damage = Callable[[Path], None]


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) == len(outcome.errors) == 1, outcome.err
    assert all(word in outcome.errors[0] for word in words), outcome.err


def config_with(**values: Any) -> Damage:
    def damage(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return damage


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def without(name: str) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        del tensors[name]
        save_file(tensors, folder / "model.safetensors")

    return damage


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def half_a_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"architectures": ')


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (config_with(architectures=["MambaForCausalLM"]), ["MambaForCausalLM", "not supported"]),
        (config_with(hidden_size=48), ["model.layers.0", "config.json asks for"]),
        (config_with(num_hidden_layers=9), ["model.layers.8"]),
        (truncated, ["damaged or cut short"]),
        (without("model.layers.3.mlp.up_proj.weight"), ["model.layers.3.mlp.up_proj.weight"]),
        (no_config, ["config.json"]),
        (half_a_config, ["not valid JSON"]),
        (no_tokenizer, ["tokenizer.json"]),
    ],
    ids=["architecture", "width", "depth", "truncated", "missing tensor", "no config", "half a config", "no tokenizer"],
)
def test_a_damaged_model_is_one_sentence(cli: Cli, world: World, tmp_path: Path, damage: Damage, words: list[str]):
    model = Path(shutil.copytree(world.model, tmp_path / "model"))
    damage(model)
    refused(cli("generate", "--model", str(model), "--prompt", "fox"), *words)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (config_with(vocab_size=96), ["vocabulary of 96"]),
        (without("d2t"), ["d2t"]),
        (config_with(draft_vocab_size=300), ["d2t"]),
        (config_with(target_hidden_size=64), ["hidden size 64"]),
        (config_with(hidden_size=64), ["64"]),
        (truncated, ["damaged or cut short"]),
        (no_config, ["config.json"]),
    ],
    ids=["vocabulary", "no d2t", "short d2t", "target's width", "own width", "truncated", "no config"],
)
def test_a_draft_that_does_not_fit_is_one_sentence(
    cli: Cli, world: World, tmp_path: Path, damage: Damage, words: list[str]
):
    draft = Path(shutil.copytree(world.draft, tmp_path / "draft"))
    damage(draft)
    refused(cli("generate", "--model", world.model, "--draft", str(draft), "--prompt", "fox"), *words)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"not a model at all"])
def test_a_corrupt_gguf_is_one_sentence(cli: Cli, tmp_path: Path, content: bytes):
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    refused(cli("generate", "--model", str(file), "--prompt", "fox"), "model.gguf")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["empty"]),
        ("\n \n", ["empty"]),
        ('{"prompt": "fox"}\n["not", "an", "object"]\n', ["line 2", "not a JSON object"]),
        ('{"prompt": "fox"}\n{"prompt": \n', ["line 2", "not JSON"]),
        ('{"text": "fox"}\n', ["line 1"]),
        ('{"prompt": 7}\n', ["line 1"]),
    ],
    ids=["empty", "blank", "list", "half", "no key", "number"],
)
def test_a_bad_file_of_prompts_is_one_sentence(cli: Cli, world: World, tmp_path: Path, content: str, words: list[str]):
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    refused(cli("generate", "--model", world.model, "--prompts", str(file)), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "fox " * 300], ["context holds 256"]),
        (["--prompt", "fox", "--max-len", "9999"], ["9999"]),
        (["--prompt", "", "--raw"], ["empty"]),
        (["--prompts", "/nowhere/prompts.jsonl"], ["/nowhere/prompts.jsonl", "does not exist"]),
        ([], ["--prompt TEXT or --prompts FILE"]),
        (["--prompt", "fox", "--max-tokens", "0"], ["max_tokens"]),
        (["--prompt", "fox", "--temperature", "-1"], ["temperature"]),
        (["--prompt", "fox", "--top-p", "0"], ["top_p"]),
        (["--prompt", "fox", "--top-k", "-1"], ["top_k"]),
        (["--prompt", "fox", "--min-p", "1"], ["min_p"]),
        (["--prompt", "fox", "--seed", "-1"], ["seed"]),
        (["--prompt", "fox", "--stop", ""], ["stop"]),
        (["--prompt", "fox", "--n", "0"], ["n must be"]),
        (["--prompt", "fox", "--min-tokens", "300"], ["min_tokens", "256"]),
        (["--prompt", "fox", "--presence-penalty", "3"], ["presence_penalty"]),
        (["--prompt", "fox", "--repetition-penalty", "0"], ["repetition_penalty"]),
        (["--prompt", "fox", "--logit-bias", "7:1"], ["ID=VALUE", "7:1"]),
        (["--prompt", "fox", "--logit-bias", "7=101"], ["logit_bias", "101"]),
        (["--prompt", "fox", "--logit-bias", "99999=1"], ["99999", "vocabulary"]),
        (["--prompt", "fox", "--bad-word", " "], ["bad word is empty"]),
        (["--prompt", "fox", "--regex", "a", "--choice", "b"], ["--regex and --choice", "one"]),
        (["--prompt", "fox", "--json-schema", "@nowhere.json"], ["nowhere.json cannot be read"]),
        (["--prompt", "fox", "--lark", "start: x"], ["the lark cannot be used", "mend it"]),
        (["--prompt", "fox", "--logprobs", "2"], ["--json"]),
        (["--prompt", "fox", "--logprobs", "21", "--json"], ["logprobs", "20"]),
        (["--prompt", "fox", "--max-batch", "0"], ["max_batch"]),
        (["--prompt", "fox", "--kv-gib", "0"], ["0.00 GiB", "kv_gib"]),
        (["--prompt", "fox", "--kv-gib", "0.0001", "--max-tokens", "200"], ["KV entries", "kv_gib"]),
        (["--prompt", "fox", "--device", "toaster"], ["toaster"]),
        (["--prompt", "fox", "--dtype", "int4"], ["int4"]),
        (["--prompt", "fox", "--capture-convention", "sideways"], ["sideways"]),
    ],
)
def test_a_bad_option_is_one_sentence(cli: Cli, world: World, arguments: list[str], words: list[str]):
    refused(cli("generate", "--model", world.model, *arguments), *words)


def test_a_missing_model_is_one_sentence(cli: Cli):
    refused(cli("generate", "--prompt", "fox"), "--model")
    refused(cli("generate", "--model", "/nowhere/model", "--prompt", "fox"), "/nowhere/model")
    refused(cli("chat", "--model", "/nowhere/model"), "/nowhere/model")
    refused(cli("demo", "--model", "/nowhere/model"), "/nowhere/model")


def test_a_model_without_a_chat_template_says_what_to_do(cli: Cli, world: World, tmp_path: Path):
    model = Path(shutil.copytree(world.model, tmp_path / "model"))
    (model / "tokenizer_config.json").write_text("{}")
    (model / "chat_template.jinja").unlink(missing_ok=True)
    refused(cli("generate", "--model", str(model), "--prompt", "fox"), "--raw")
    refused(cli("chat", "--model", str(model)), "chat template")
