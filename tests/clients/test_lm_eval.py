"""lm-eval with tasks and a tokenizer from this machine: its answers and choices are the Python door's."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream import LLM, SamplingParams
from tests.clients.world import client, run
from tests.served import model_arguments, serving
from tests.unit.cli.world import PROMPTS, World, make_world

pytestmark = pytest.mark.clients

TASK = """\
task: local
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["zzz"], max_gen_toks: 8, do_sample: false, temperature: 0}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""
CHOICES = """\
task: local
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
ENDINGS = ("the lazy dog", "1234 + 5678", "def main", "sleeps")


@pytest.mark.parametrize(("kind", "path"), [("local-completions", "completions"), ("local-chat-completions", "chat")])
def test_lm_eval_finds_the_answers_that_it_is_told_to_expect(tmp_path: Path, kind: str, path: str) -> None:
    program, world = client("lm_eval"), make_world(tmp_path)
    llm, params = LLM(world.model, draft=None), SamplingParams(max_tokens=8)
    if path == "chat":
        answers = llm.chat([[{"role": "user", "content": text}] for text in PROMPTS], params)
    else:
        answers = llm.generate(list(PROMPTS), params)
    lines = [{"question": text, "answer": each.text} for text, each in zip(PROMPTS, answers, strict=True)]
    more = ("--apply_chat_template",) if path == "chat" else ()
    found = evaluate(program, world, tmp_path, kind, TASK, lines, *more)
    assert found["exact_match,none"] == 1.0


@pytest.mark.parametrize("best", [True, False], ids=["likeliest", "unlikeliest"])
def test_lm_eval_chooses_the_ending_that_the_model_finds_likeliest(tmp_path: Path, *, best: bool) -> None:
    program, world = client("lm_eval"), make_world(tmp_path)
    llm, lines = LLM(world.model, draft=None), []
    for text in PROMPTS:
        likely = [log_likelihood(llm, text, f" {ending}") for ending in ENDINGS]
        answer = likely.index(max(likely) if best else min(likely))
        lines.append({"question": text, "choices": list(ENDINGS), "answer": answer})
    found = evaluate(program, world, tmp_path, "local-completions", CHOICES, lines)
    assert found["acc,none"] == float(best)


def log_likelihood(llm: LLM, context: str, ending: str) -> float:
    """log p(ending | context), of the whole text's tokens beyond the context's."""
    num_context = len(llm.tokenizer.encode(context))
    (found,) = llm.generate([context + ending], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert found.prompt_logprobs is not None
    return sum(each.chosen.raw for each in found.prompt_logprobs[num_context - 1 :])


def evaluate(
    program: str, world: World, folder: Path, kind: str, task: str, lines: list[dict[str, Any]], *more: str
) -> dict[str, Any]:
    """Run a task over these documents against a server of its own; the task's metrics."""
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "local.yaml").write_text(task.format(data=folder / "data.jsonl"))
    chat = kind == "local-chat-completions"
    with serving(*model_arguments(world.model, world.draft, "--served-model-name", "tiny")) as server:
        url = f"{server.url}/v1/{'chat/completions' if chat else 'completions'}"
        arguments = f"model=tiny,base_url={url},num_concurrent=2,max_length=200"
        arguments += "" if chat else f",tokenizer={world.model}"
        common = ["--tasks", "local", "--include_path", str(folder), "--output_path", "out"]
        run(program, "run", "--model", kind, "--model_args", arguments, *common, *more, folder=folder)
    (found,) = (folder / "out").rglob("results*.json")
    return json.loads(found.read_text())["results"]["local"]
