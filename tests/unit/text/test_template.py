"""Chat templates render as transformers renders them, and cannot get out of their sandbox."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from slipstream.text.template import ChatTemplate, load_template
from tests.unit.text import tiny_tokenizer
from tests.unit.text.tiny_tokenizer import BOS, EOS
from tests.unit.weights import tiny_gguf

# SmolLM2's own, as its GGUF file carries it.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# In the manner of Llama 3: begins with bos, headers, a system turn that gathers date and tools.
LLAMA3 = """
{{- bos_token }}
{%- set system = messages[0]['content']|trim if messages[0]['role'] == 'system' else "" %}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{{- "<|header|>system<|/header|>\\n\\nToday: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system }}{{- eos_token }}
{%- for message in messages if message.role != 'system' %}
    {%- if message.tool_calls is defined %}
        {{- message.tool_calls[0].function | tojson }}
    {%- else %}
        {{- '<|header|>' + message['role'] + '<|/header|>\\n\\n'+ message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|/header|>\\n\\n' }}
{%- endif %}
"""
# In the manner of Qwen 3: a namespace, a search from the end, loop controls, thinking that can be switched off.
QWEN3 = """
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.last = index %}
        {% break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
        {{- '<|im_start|>' + message.role + '\\n' }}{% generation %}{{- content + '<|im_end|>\\n' }}{% endgeneration %}
    {%- elif message.role == "tool" %}
        {%- continue %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{{- ns.last }}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
# In the manner of Mistral: turns must alternate.
MISTRAL = """
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Turns must alternate!') }}{% endif %}
{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]{% else %}{{ message['content'] + eos_token }}
{% endif %}{% endfor %}
"""
TEMPLATES = {"smollm2": SMOLLM2, "llama3": LLAMA3, "qwen3": QWEN3, "mistral": MISTRAL}

USER = {"role": "user", "content": '  Is 1 < 2 & "caf\u00e9"? \u4f60\u597d \U0001f680\n'}
ANSWER = {"role": "assistant", "content": "<think>hm</think>\n\nYes."}
SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS = ([USER], [USER, ANSWER, USER], [SYSTEM, USER])
TOOL = {
    "type": "function",
    "function": {"name": "heure", "description": "L'heure <ici> \u00e9t\u00e9", "parameters": {"type": "object"}},
}


def theirs(source: str, messages: list[dict], **kwargs: Any) -> str:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer.raw(), bos_token=BOS, eos_token=EOS)
    return tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **kwargs)


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (name, messages)
        for name in TEMPLATES
        for messages in CONVERSATIONS
        if name != "mistral" or messages[0] is USER  # which refuses a system turn
    ],
)
@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("extra", [{}, {"tools": [TOOL]}, {"enable_thinking": False, "date_string": "1 May 2020"}])
def test_templates_render_as_transformers_renders_them(
    name: str, messages: list[dict], prompted: bool, extra: dict[str, Any]
) -> None:
    ours = ChatTemplate(TEMPLATES[name], bos_token=BOS, eos_token=EOS)
    rendered = ours.render(messages, add_generation_prompt=prompted, **extra)
    assert rendered == theirs(TEMPLATES[name], messages, add_generation_prompt=prompted, **extra)


def test_a_message_with_empty_keys_renders_as_one_without_them() -> None:
    template = ChatTemplate(LLAMA3, bos_token=BOS, eos_token=EOS)
    assert template.render([{**USER, "tool_calls": None}], date_string="x") == template.render([USER], date_string="x")


def test_a_marked_answer_keeps_its_names_to_itself() -> None:
    source = "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}"
    assert ChatTemplate(source, bos_token=None, eos_token=None).render([]) == theirs(source, [USER]) == "21"


def test_a_missing_token_renders_as_nothing() -> None:
    assert ChatTemplate("[{{ bos_token }}]", bos_token=None, eos_token=None).render([]) == "[]"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ messages[0]['__class__'] }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ ''|attr('__class__') }}{{ (''|attr('__class__')).mro() }}",
        "{{ '{0.__class__.mro}'.format('') }}{{ messages.append(1) }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update(role='x') }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_cannot_reach_outside_or_change_what_it_is_given(source: str) -> None:
    with pytest.raises(ValueError, match="does not accept these messages"):
        ChatTemplate(source, bos_token=BOS, eos_token=EOS).render([USER])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (MISTRAL, r"\(Turns must alternate!\); change the messages$"),
        ("{{ messages[0].content + 1 }}", "does not accept these messages"),
        ("{{ nothing.at.all }}", r"\('nothing' is undefined\)"),
        ("{{ 1 / 0 }}", r"\(division by zero\)"),
    ],
)
def test_a_template_that_fails_is_one_sentence(source: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        ChatTemplate(source, bos_token=BOS, eos_token=EOS).render([ANSWER])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["{% for %}", "{{ a", "{% generation %}", "{% unknown %}"])
def test_a_template_that_cannot_be_read_is_one_sentence(source: str) -> None:
    with pytest.raises(ValueError, match=r"^the chat template cannot be read \(.*\); give another, or none$"):
        ChatTemplate(source, bos_token=None, eos_token=None)


@pytest.mark.parametrize(
    ("config", "file", "expected"),
    [
        ({"chat_template": "one {{ eos_token }}"}, None, f"one {EOS}"),
        ({"chat_template": "one"}, "two {{ bos_token }}", f"two {BOS}"),
        (
            {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]},
            None,
            "d",
        ),
        ({"chat_template": "{{ bos_token }}", "bos_token": {"content": "<s>"}}, None, "<s>"),
    ],
)
def test_a_folders_template_is_found_where_it_lies(
    tmp_path: Path, config: dict[str, Any], file: str | None, expected: str
) -> None:
    tiny_tokenizer.save(tmp_path, config=config)
    if file is not None:
        (tmp_path / "chat_template.jinja").write_text(file)
    template = load_template(tmp_path)
    assert template is not None
    assert template.render([USER]) == expected


def test_a_gguf_files_template_is_its_own(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", extra={"tokenizer.chat_template": SMOLLM2 + "{{ bos_token + eos_token }}"})
    template = load_template(tmp_path / "m.gguf")
    assert template is not None
    assert template.render([USER]) == theirs(SMOLLM2, [USER], add_generation_prompt=True) + "<|im_start|><|im_end|>"


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    tiny_tokenizer.save(tmp_path)
    assert load_template(tmp_path) is None
    tiny_gguf.write(tmp_path / "m.gguf", extra={"tokenizer.chat_template": None})
    assert load_template(tmp_path / "m.gguf") is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([{"name": "rag", "template": ""}], "the chat templates rag but no default; rename one"),
        ([{"name": "default"}], "neither text nor a list; download it again"),
        (3, "neither text nor a list"),
    ],
)
def test_a_configured_template_that_cannot_be_chosen_is_refused(tmp_path: Path, found: Any, words: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": found}))
    with pytest.raises(ValueError, match=words):
        load_template(tmp_path)
