"""Every field of a request for a message, with its effect or the error that refuses it."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from data.json_types import Json, JsonObject
from octavo.frontend.intake import PreparedRequest
from server.scripted import FACTS

pytestmark = [pytest.mark.assets, pytest.mark.xdist_group("server")]

ADD: JsonObject = {
    "name": "add",
    "description": "adds two numbers",
    "input_schema": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
}
NONCE = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli; cch=%05x;"
USER: JsonObject = {"role": "user", "content": "What is 2 + 3.5?"}
Effect = Callable[[PreparedRequest, PreparedRequest], bool]  # with the field, and without it
FORMAT: JsonObject = {"type": "json_schema", "schema": {"enum": ["yes"]}}


@dataclass(frozen=True)
class Case:
    fields: JsonObject
    has_effect: Effect


def param(name: str, value: Json) -> Effect:
    return lambda found, plain: getattr(found.params, name) == value and found.prompt_ids == plain.prompt_ids


def same(found: PreparedRequest, plain: PreparedRequest) -> bool:
    names = [name for name in found.params.__struct_fields__ if name != "seed"]
    return found.prompt == plain.prompt and all(
        getattr(found.params, name) == getattr(plain.params, name) for name in names
    )


def ends(text: str) -> Effect:
    return lambda found, _: (found.prompt or "").endswith(text)


def has(text: str) -> Effect:
    return lambda found, plain: text in (found.prompt or "") and text not in (plain.prompt or "")


def constrained(found: PreparedRequest, plain: PreparedRequest) -> bool:
    return found.params.grammar is not None and plain.params.grammar is None


def is_tool_grammar(found: PreparedRequest, _: PreparedRequest) -> bool:
    return found.params.grammar is not None and found.format is not None and found.format.max_calls == 1


EFFECTS: dict[str, list[Case]] = {
    "messages": [
        Case({"messages": [{"role": "user", "content": "bye"}]}, has("bye")),
        Case({"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}, same),
        Case({"messages": [USER, {"role": "assistant", "content": "It is"}]}, ends("It is")),
        Case({"messages": [USER, {"role": "system", "content": "Hurry."}]}, has("Hurry.")),
        Case(
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
                    },
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "1", "content": "no", "is_error": True}
                        ],
                    },
                ]
            },
            has("Error: no"),
        ),
    ],
    "system": [
        Case({"system": "Be brief."}, has("Be brief.")),
        Case({"system": [{"type": "text", "text": "Be brief."}]}, has("Be brief.")),
        Case({"system": ""}, same),
    ],
    "model": [Case({"model": None}, same)],
    "max_tokens": [
        Case({"max_tokens": 5}, param("max_tokens", 5)),
        Case({"max_tokens": 10**9}, lambda found, _: found.params.max_tokens == room(found)),
    ],
    "tools": [Case({"tools": [ADD]}, has("adds two numbers")), Case({"tools": []}, same)],
    "tool_choice": [
        Case({"tools": [ADD], "tool_choice": {"type": "tool", "name": "add"}}, is_tool_grammar),
        Case(
            {"tools": [ADD], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            is_tool_grammar,
        ),
        Case(
            {"tools": [ADD], "tool_choice": {"type": "any"}},
            lambda found, plain: constrained(found, plain) and not is_tool_grammar(found, plain),
        ),
        Case({"tools": [ADD], "tool_choice": {"type": "none"}}, same),
        Case({"tool_choice": {"type": "auto"}}, same),
    ],
    "thinking": [
        Case({"thinking": {"type": "disabled"}}, ends("<think>\n\n</think>\n\n")),
        Case({"thinking": {"type": "enabled", "budget_tokens": 2000}}, same),
        Case({"thinking": {"type": "adaptive"}}, same),
    ],
    "output_config": [
        Case({"output_config": {"format": FORMAT}}, constrained),
        Case({"output_config": {"effort": "low"}}, same),  # the template of this model does not read it
        Case({"output_config": {}}, same),
    ],
    "output_format": [Case({"output_format": FORMAT}, constrained)],
    "stop_sequences": [Case({"stop_sequences": ["a", "b"]}, param("stop", ("a", "b")))],
    "temperature": [Case({"temperature": 0.25}, param("temperature", 0.25))],
    "top_p": [Case({"top_p": 0.25}, param("top_p", 0.25))],
    "top_k": [Case({"top_k": 3}, param("top_k", 3)), Case({"top_k": -1}, same)],
    "min_p": [Case({"min_p": 0.25}, param("min_p", 0.25))],
    "seed": [Case({"seed": 5}, param("seed", 5))],
    "top_logprobs": [Case({"top_logprobs": 2, "octavo": {"token_ids": True}}, param("logprobs", 2))],
    "priority": [Case({"priority": 3}, lambda found, _: found.messages[0].priority == 3)],
    "cache_salt": [Case({"cache_salt": "s"}, lambda found, _: found.messages[0].cache_salt == "s")],
    "timeout": [
        Case({"timeout": 9}, lambda found, plain: found.messages[0].deadline != plain.messages[0].deadline)
    ],
    "metadata": [Case({"metadata": {"user_id": "me"}}, same)],
    "service_tier": [Case({"service_tier": "auto"}, same)],
    "context_management": [Case({"context_management": {"edits": []}}, same)],
    "mcp_servers": [Case({"mcp_servers": []}, same)],
    "container": [Case({"container": None}, same)],
    "thread": [Case({"thread": None}, same)],
    "compaction": [Case({"compaction": None}, same)],
    "keep_system_blocks": [
        Case(
            {"system": [{"type": "text", "text": NONCE % 5}], "keep_system_blocks": True},
            has("x-anthropic-billing-header"),
        ),
        Case({"system": [{"type": "text", "text": NONCE % 5}], "keep_system_blocks": False}, same),
    ],
    "an_unknown_field": [Case({"an_unknown_field": [1, {"x": None}]}, same)],
}
# Fields of the answer, and the tests that cover them.
ELSEWHERE = {"stream": "test_an_answer", "octavo": "test_the_explanation_is_in_both_forms"}
REFUSED: list[tuple[JsonObject, str]] = [
    ({"messages": []}, "messages: "),
    (
        {"messages": [USER, {"role": "user", "content": [{"type": "image"}]}]},
        "messages[1].content[0]: content of type 'image'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
        "messages[0].content[0]: content of type 'document'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        "messages[0].content[0].text: ",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text is missing",
    ),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content: "),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
        "messages[0].content[0]: a message with the role user",
    ),
    (
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f"}]},
            ]
        },
        "messages[1].content[0].input is missing",
    ),
    (
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            ]
        },
        "messages[1]: the last message has a tool_use",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}],
                }
            ]
        },
        "messages[0].content[0].content[0]: content of type 'image'",
    ),
    ({"system": [{"type": "image"}]}, "system[0]: content of type 'image'"),
    ({"max_tokens": None}, "max_tokens: "),
    ({"max_tokens": 0}, "max_tokens"),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools[0].type: the tool type 'web_search_20250305'",
    ),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name is missing"),
    ({"tools": [ADD, ADD]}, "tools: function name 'add' is not unique"),
    ({"tools": [ADD | {"strict": True, "input_schema": {"type": "strange"}}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "any"}}, "tool_choice requires tools"),
    ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name: "),
    ({"tools": [ADD], "tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type: "),
    (
        {"output_config": {"format": FORMAT}, "output_format": FORMAT},
        "give either output_config.format or output_format",
    ),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "strange"}}}},
        "output_config.format.schema",
    ),
    ({"stop_sequences": [""]}, "stop_sequences: "),
    ({"top_logprobs": 2}, "top_logprobs requires octavo"),
    ({"top_logprobs": 99, "octavo": {"token_ids": True}}, "top_logprobs"),
    ({"temperature": -1}, "temperature"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"thread": {"id": "t"}}, "thread"),
    ({"compaction": {"type": "c"}}, "compaction"),
]


def room(found: PreparedRequest) -> int:
    return FACTS.max_model_len - len(found.prompt_ids)


CASES = [
    pytest.param(case, id=f"{name}-{number}")
    for name, cases in EFFECTS.items()
    for number, case in enumerate(cases)
]
