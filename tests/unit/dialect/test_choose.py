"""Families by the templates that models really have."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data.json_types import Json, JsonObject
from octavo.checkpoint import open_checkpoint
from octavo.dialect.choose import dialect_of, reasons_after
from octavo.dialect.families import GEMMA_OPEN, HERMES_OPEN, MISTRAL_OPEN
from octavo.dialect.pieces import joined
from octavo.dialect.reader import FAMILIES, AnswerFormat, AnswerReader
from octavo.dialect.reasoning import Reasons
from octavo.dialect.told import in_plain_words
from octavo.dialect.tools import described
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
    """As the server does it."""
    dialect = dialect_of(template.source)
    if dialect.renders_tools:
        return template.render(messages, tools=[ADD], **keywords)
    return template.render(in_plain_words(messages, [ADD], dialect.family), **keywords)


def text_assets(path: Path) -> TextAssets:
    return text_assets_from_directory(path) if path.is_dir() else open_checkpoint(str(path)).text


@pytest.mark.assets
@pytest.mark.parametrize("name", [*TOKENIZERS, "smollm2-135m-instruct-q4_1.gguf"])
def test_a_model_reads_its_own_calls(name: str, assets: Callable[[str], Path]) -> None:
    """What the template writes for a call in the conversation is what the reader of answers understands."""
    template = ChatTemplate(text_assets(assets(name)))
    dialect = dialect_of(template.source)
    assert (dialect.family, dialect.has_reasoning) == TOKENIZERS.get(name, ("hermes", False))
    before = rendered(template, CONVERSATION[:1])
    after = rendered(template, CONVERSATION[:2], add_generation_prompt=False)
    assert "Adds two numbers." in before
    written = after[after.rindex(STARTS[dialect.family]) :]
    reader = AnswerReader(AnswerFormat(Reasons.NEVER, dialect.family, described([ADD])))
    message = joined(reader.push(written) + reader.finish())
    (call,) = message.calls
    assert call.name == "add"
    assert json.loads(call.arguments) == ARGUMENTS
    assert "3" in rendered(template, CONVERSATION).split("What is 1 + 2?")[1]


@pytest.mark.assets
def test_thoughts_of_qwen3(assets: Callable[[str], Path]) -> None:
    template = ChatTemplate(text_assets(assets("tokenizer-qwen3")))
    dialect = dialect_of(template.source)
    prompt = template.render(CONVERSATION[:1])
    assert reasons_after(prompt, dialect) is Reasons.MAYBE
    assert reasons_after(prompt + "<think>\n", dialect) is Reasons.BEGUN


def test_a_model_without_tags_does_not_think() -> None:
    assert reasons_after("<think>", dialect_of("{{ messages }}")) is Reasons.NEVER


def test_every_family_can_be_chosen() -> None:
    sources = ["<tool_call>", "[TOOL_CALLS]", "<|start_header_id|> tools", "<start_of_turn>"]
    assert {dialect_of(source).family for source in sources} == set(FAMILIES)


def test_results_of_several_calls_are_one_message() -> None:
    calls = [CONVERSATION[1]["tool_calls"][0]] * 2
    messages = [CONVERSATION[0], CONVERSATION[1] | {"tool_calls": calls}, CONVERSATION[2], CONVERSATION[2]]
    for family in ("hermes", "gemma"):
        told = in_plain_words(messages, [ADD], family)
        assert [message["role"] for message in told] == ["system", "user", "assistant", "user"]
        assert told[3]["content"].count("3") == 2
        assert told[2]["content"].count("add") == 2


def test_the_systems_own_words_come_first() -> None:
    told = in_plain_words([{"role": "system", "content": "Be brief."}, CONVERSATION[0]], [ADD], "hermes")
    assert [message["role"] for message in told] == ["system", "user"]
    assert told[0]["content"].startswith("Be brief.\n\nYou may call functions.")
