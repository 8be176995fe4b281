"""Families are detected from the templates of real models."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data.json_types import Json, JsonObject
from octavo.checkpoint import open_checkpoint
from octavo.dialect.choose import dialect_of, reasons_after
from octavo.dialect.families import GEMMA_OPEN, HERMES_OPEN, MISTRAL_OPEN
from octavo.dialect.pieces import joined
from octavo.dialect.plain_text import in_plain_words
from octavo.dialect.reader import FAMILIES, AnswerFormat, AnswerReader
from octavo.dialect.reasoning import Reasons
from octavo.dialect.tools import parse_tools
from octavo.text.assets import TextAssets
from octavo.text.chat_template import ChatTemplate
from octavo.text.huggingface import text_assets_from_directory

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
ARGUMENTS = {"a": 1, "b": 2}
CONVERSATION: list[JsonObject] = [
    {"role": "user", "content": "What is 1 + 2?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "123456789", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}
        ],
    },
    {"role": "tool", "content": "3", "tool_call_id": "123456789"},
]
STARTS = {"hermes": HERMES_OPEN, "mistral": MISTRAL_OPEN, "llama": '{"name"', "gemma": GEMMA_OPEN}
TOKENIZERS = {
    "tokenizer-qwen2.5": ("hermes", False),
    "tokenizer-qwen3": ("hermes", True),
    "tokenizer-llama3.2": ("llama", False),
    "tokenizer-mistral-nemo": ("mistral", False),
    "tokenizer-gemma3": ("gemma", False),
}


def rendered(template: ChatTemplate, messages: list[JsonObject], **keywords: Json) -> str:
    """Render a conversation with tools as the server does."""
    dialect = dialect_of(template.source)
    if dialect.renders_tools:
        return template.render(messages, tools=[ADD], **keywords)
    return template.render(in_plain_words(messages, [ADD], dialect.family), **keywords)


def text_assets(path: Path) -> TextAssets:
    return text_assets_from_directory(path) if path.is_dir() else open_checkpoint(str(path)).text


@pytest.mark.assets
@pytest.mark.parametrize("name", [*TOKENIZERS, "smollm2-135m-instruct-q4_1.gguf"])
def test_calls_rendered_by_the_template_can_be_parsed(name: str, assets: Callable[[str], Path]) -> None:
    """The reader of answers parses a call that the template rendered in the conversation."""
    template = ChatTemplate(text_assets(assets(name)))
    dialect = dialect_of(template.source)
    assert (dialect.family, dialect.has_reasoning) == TOKENIZERS.get(name, ("hermes", False))
    before = rendered(template, CONVERSATION[:1])
    after = rendered(template, CONVERSATION[:2], add_generation_prompt=False)
    assert "Adds two numbers." in before
    written = after[after.rindex(STARTS[dialect.family]) :]
    reader = AnswerReader(AnswerFormat(Reasons.NEVER, dialect.family, parse_tools([ADD])))
    message = joined(reader.push(written) + reader.finish())
    (call,) = message.calls
    assert call.name == "add"
    assert json.loads(call.arguments) == ARGUMENTS
    assert "3" in rendered(template, CONVERSATION).split("What is 1 + 2?")[1]


@pytest.mark.assets
def test_reasoning_of_qwen3(assets: Callable[[str], Path]) -> None:
    template = ChatTemplate(text_assets(assets("tokenizer-qwen3")))
    dialect = dialect_of(template.source)
    prompt = template.render(CONVERSATION[:1])
    assert reasons_after(prompt, dialect) is Reasons.MAYBE
    assert reasons_after(prompt + "<think>\n", dialect) is Reasons.BEGUN


def test_a_model_without_tags_has_no_reasoning() -> None:
    assert reasons_after("<think>", dialect_of("{{ messages }}")) is Reasons.NEVER


def test_every_family_can_be_detected() -> None:
    sources = ["<tool_call>", "[TOOL_CALLS]", "<|start_header_id|> tools", "<start_of_turn>"]
    assert {dialect_of(source).family for source in sources} == set(FAMILIES)


def test_results_of_several_calls_are_merged_into_one_message() -> None:
    calls = [CONVERSATION[1]["tool_calls"][0]] * 2
    messages = [CONVERSATION[0], CONVERSATION[1] | {"tool_calls": calls}, CONVERSATION[2], CONVERSATION[2]]
    for family in ("hermes", "gemma"):
        messages_as_text = in_plain_words(messages, [ADD], family)
        assert [message["role"] for message in messages_as_text] == ["system", "user", "assistant", "user"]
        assert messages_as_text[3]["content"].count("3") == 2
        assert messages_as_text[2]["content"].count("add") == 2


def test_the_system_message_comes_first() -> None:
    messages_as_text = in_plain_words(
        [{"role": "system", "content": "Be brief."}, CONVERSATION[0]], [ADD], "hermes"
    )
    assert [message["role"] for message in messages_as_text] == ["system", "user"]
    assert messages_as_text[0]["content"].startswith("Be brief.\n\nYou may call functions.")
