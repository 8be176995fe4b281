"""Composing a prompt from a chat: rejected messages, template inputs, and the grammars to check."""

import json
import re

import pytest

from data.json_types import Json, JsonObject
from octavo.dialect.choose import dialect_of
from octavo.errors import RequestError, TemplateError
from octavo.frontend.chat import ChatTask, compose
from octavo.frontend.text_model import TextModel
from octavo.frontend.tool_use import OnlyTool, ToolChoice
from octavo.grammar import specs
from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams
from octavo.text.assets import TextAssets
from octavo.text.chat_template import ChatTemplate
from octavo.text.tokenizer import Tokenizer

# Renders its inputs as JSON. Its source identifies the call format of Hermes.
TEMPLATE = "{# <tool_call> #}{{ {'messages': messages, 'tools': tools} | tojson }}"
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"  # does not support tools
)
REASONING_TEMPLATE = TEMPLATE + "{# <think> #}"
TOKENIZER = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []}

NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}}}
ANYTHING = {"type": "object"}
COLOUR = {"enum": ["red", "green"]}
QUESTION = {"role": "user", "content": "Well?"}


def text_model(template: str = TEMPLATE) -> TextModel:
    assets = TextAssets(tokenizer_json=json.dumps(TOKENIZER), chat_template=template)
    return TextModel(
        "m", assets, Tokenizer(assets), ChatTemplate(assets), dialect_of(template), SamplingParams()
    )


def tool(name: Json, **function: Json) -> JsonObject:
    return {"type": "function", "function": {"name": name, **function}}


def shown(*messages: JsonObject, **task: Json) -> JsonObject:
    """Return the inputs of the template."""
    prompt = compose(ChatTask(messages, SamplingParams(), **task), text_model()).prompt
    assert isinstance(prompt, str)
    given: JsonObject = json.loads(prompt)
    return given


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "no role"}, "messages[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "0"}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": 7}, "messages[0].tool_calls"),
        ({"role": "user", "content": [{"type": "image"}]}, "messages[0].content"),
    ],
    ids=["role", "call", "calls", "content"],
)
def test_messages_that_plain_text_cannot_express_are_rejected_by_field(
    message: JsonObject, param: str
) -> None:
    task = ChatTask([message], SamplingParams(), tools=[tool("add")])
    with pytest.raises(RequestError) as refused:
        compose(task, text_model(PLAIN_TEMPLATE))
    assert refused.value.param == param


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    task = ChatTask([{"role": "user", "content": parts}], SamplingParams(), tools=[tool("add")])
    assert str(compose(task, text_model(PLAIN_TEMPLATE)).prompt).endswith("user: ab\n")


STRICT_TEMPLATE = """\
{%- for m in messages -%}
{%- if m.role == "system" and not loop.first -%}{{ raise_exception("system must come first") }}{%- endif -%}
{%- if not loop.first and m.role == loop.previtem.role -%}{{ raise_exception("alternate") }}{%- endif -%}
{{ m.role }}: {{ m.content }}
{% endfor %}"""


def test_late_system_messages_become_text_of_the_user_where_the_template_requires_it() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi!"},
        {"role": "system", "content": "It is noon."},
        {"role": "assistant", "content": "Hello."},
        {"role": "system", "content": "It is night."},
        {"role": "user", "content": "And now?"},
    ]

    def prompt(template: str, last: int) -> str:
        made = compose(ChatTask(messages[:last], SamplingParams()), text_model(template)).prompt
        assert isinstance(made, str)
        return made

    expected = """\
system: Be brief.
user: Hi!

It is noon.
assistant: Hello.
user: It is night.

And now?
"""
    assert prompt(STRICT_TEMPLATE, 6) == expected
    assert all(expected.startswith(prompt(STRICT_TEMPLATE, last)) for last in (1, 3, 4)), "prefixes stay"
    plain = prompt(PLAIN_TEMPLATE, 6)
    assert plain.count("system: ") == 3, "a template that allows late system messages gets them"


def test_an_error_of_the_template_is_not_hidden_by_the_second_attempt() -> None:
    always = "{{ raise_exception('never') }}"
    late = {"role": "system", "content": "Late."}
    for messages in ([QUESTION], [QUESTION, late]):
        with pytest.raises(TemplateError, match="never"):
            compose(ChatTask(messages, SamplingParams()), text_model(always))


def with_call(arguments: Json) -> JsonObject:
    call = {"id": "0", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


# -- tools -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nameless",
    [{}, {"function": None}, {"function": {}}, tool(""), tool(7), "add"],
    ids=["nothing", "no function", "no name", "empty name", "a number", "text"],
)
def test_a_tool_without_a_name_is_rejected_by_index(nameless: Json) -> None:
    with pytest.raises(RequestError, match=r"tools\[1\]: a tool must have the form") as refused:
        shown(QUESTION, tools=[tool("add"), nameless])
    assert refused.value.param == "tools"


def test_the_template_gets_tools_without_the_strict_field() -> None:
    assert shown(QUESTION, tools=[tool("add", strict=True)])["tools"] == [tool("add")]
    assert shown(QUESTION, tools=[tool("add")], tool_choice=ToolChoice.NONE)["tools"] is None


# -- calls in the history ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [('{"a": [1, "ü"]}', {"a": [1, "ü"]}), ({"a": 2}, {"a": 2}), ("", {}), (None, {}), ("null", {})],
    ids=["text", "object", "empty", "None", "null"],
)
def test_arguments_reach_the_template_as_objects(arguments: Json, seen: JsonObject) -> None:
    message = with_call(arguments)
    given = shown(QUESTION, message)["messages"][1]
    assert given["tool_calls"][0]["function"] == {"name": "add", "arguments": seen}
    assert given["content"] == "", "templates concatenate it with other text"
    assert message == with_call(arguments), "the caller's message must not change"


def test_arguments_that_are_not_json_are_rejected_by_field() -> None:
    message = with_call("{}")
    message["tool_calls"] += with_call('{"a": ')["tool_calls"]
    field = "messages[2].tool_calls[1].function.arguments"
    with pytest.raises(RequestError, match=re.escape(field)) as refused:
        shown(QUESTION, QUESTION, message)
    assert refused.value.param == field


# -- grammars ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["grammar", "structured_outputs.regex"])
def test_a_regex_with_tools_or_reasoning_is_rejected_by_the_callers_field_name(field: str) -> None:
    regex = GrammarSpec(GrammarKind.REGEX, "[a-z]+")
    params = SamplingParams(grammar=regex)
    with_tools = ChatTask([QUESTION], params, grammar_field=field, tools=[tool("add")])
    without = ChatTask([QUESTION], params, grammar_field=field)
    for task, model in ((with_tools, text_model()), (without, text_model(REASONING_TEMPLATE))):
        with pytest.raises(RequestError, match=re.escape(field)) as refused:
            compose(task, model)
        assert refused.value.param == field
    assert compose(without, text_model()).params.grammar == regex


def test_grammars_are_ordered_as_errors_are_reported() -> None:
    """First the caller's grammar, then the schema of each tool, then the combined grammar."""
    asked = specs.of_schema(COLOUR)
    task = ChatTask(
        [QUESTION],
        SamplingParams(grammar=asked),
        grammar_field="schema",
        tools=[tool("add", parameters=NUMBERS), tool("time")],
    )
    composed = compose(task, text_model())
    *parts, whole = composed.grammars
    assert [(part.field, part.spec) for part in parts] == [
        ("schema", asked),
        ("tools[0].function.parameters", specs.of_schema(NUMBERS)),
        ("tools[1].function.parameters", specs.of_schema(ANYTHING)),
    ]
    assert (whole.field, whole.spec.kind) == ("tools", GrammarKind.CALLS)
    assert composed.params.grammar == whole.spec


def test_only_grammars_that_are_used_are_checked() -> None:
    def fields(params: SamplingParams, model: TextModel, **task: Json) -> list[str]:
        return [one.field for one in compose(ChatTask([QUESTION], params, **task), model).grammars]

    free, held = SamplingParams(), SamplingParams(grammar=specs.of_schema(COLOUR))
    tools = [tool("time"), tool("add", parameters=NUMBERS, strict=True)]
    plain, reasoning = text_model(), text_model(REASONING_TEMPLATE)
    assert fields(free, reasoning) == []
    assert fields(held, plain) == ["grammar"]
    assert fields(held, reasoning) == ["grammar", "grammar"], "the second one also allows reasoning"
    assert fields(free, plain, tools=tools[:1]) == []
    assert fields(free, plain, tools=tools) == ["tools[1].function.parameters", "tools"]
    named = {"tools": tools, "tool_choice": OnlyTool("add")}
    assert fields(free, plain, **named) == ["tools[1].function.parameters", "tools"]
