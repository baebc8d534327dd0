"""lm-eval with a task and a tokenizer from this machine: its answers are the Python door's."""

import json
from pathlib import Path

import pytest

from slipstream import LLM, SamplingParams
from tests.clients.world import client, run
from tests.served import model_arguments, serving
from tests.unit.cli.world import PROMPTS, make_world

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


@pytest.mark.parametrize(("kind", "path"), [("local-completions", "completions"), ("local-chat-completions", "chat")])
def test_lm_eval_finds_the_answers_that_it_is_told_to_expect(tmp_path: Path, kind: str, path: str) -> None:
    program, world = client("lm_eval"), make_world(tmp_path)
    llm, params = LLM(world.model, draft=None), SamplingParams(max_tokens=8)
    if path == "chat":
        answers = llm.chat([[{"role": "user", "content": text}] for text in PROMPTS], params)
    else:
        answers = llm.generate(list(PROMPTS), params)
    lines = [{"question": text, "answer": each.text} for text, each in zip(PROMPTS, answers, strict=True)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "local.yaml").write_text(TASK.format(data=tmp_path / "data.jsonl"))
    url_path = "chat/completions" if path == "chat" else "completions"
    with serving(*model_arguments(world.model, world.draft, "--served-model-name", "tiny")) as server:
        arguments = f"model=tiny,base_url={server.url}/v1/{url_path},num_concurrent=2,max_length=200"
        arguments += f",tokenizer={world.model}" if path == "completions" else ""
        more = ["--apply_chat_template"] if path == "chat" else []
        common = ["--tasks", "local", "--include_path", str(tmp_path), "--output_path", "out"]
        run(program, "run", "--model", kind, "--model_args", arguments, *common, *more, folder=tmp_path)
    (found,) = (tmp_path / "out").rglob("results*.json")
    assert json.loads(found.read_text())["results"]["local"]["exact_match,none"] == 1.0
