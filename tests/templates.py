"""Chat templates for tests of the HTTP door."""

# Tools and calls as Hermes' and Qwen2.5's templates have them, in few tokens.
HERMES = """\
{%- if tools %}
Call with <tool_call>: {% for tool in tools %}{{ tool.function.name }} {% endfor %}
{% endif %}
{%- for message in messages %}
{{ message.role }}: {{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}

{% endfor %}
{%- if add_generation_prompt %}
assistant:
{%- if enable_thinking %} <think>
{% endif %}
{%- endif %}
"""
