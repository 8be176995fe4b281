"""Request bodies of the Anthropic API: see `server.wire`.

Fields that only its servers can obey are accepted if ignoring them changes no answer: `metadata`,
`service_tier`, `cache_control` (prefixes are always cached), `context_management`, and any that is not here.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from octavo.server.wire import FailFastList, GenerationBody, Item, WireModel, if_given, present

MAX_MESSAGES = 8192
MAX_TOOLS = 128
ROLES = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
BLOCK_TYPES = tuple(dict.fromkeys(kind for kinds in ROLES.values() for kind in kinds))
OWN_TOOL = "custom"  # the type of tools that the client runs
STRING, OBJECT = {"type": "string"}, {"type": "object"}
NOT_SUPPORTED = "not supported"


def _kind(value: Any) -> str:
    """Return the alternative that errors are about. Error paths leave out both names: see `http.errors`."""
    return "str" if isinstance(value, str) else "List"


# Text, or a list of blocks.
TextOr = Annotated[
    Annotated[str, Tag("str")] | Annotated[FailFastList[Item], Tag("List")], Discriminator(_kind)
]


def _of_type(kind: str, **fields: dict[str, Any]) -> dict[str, Any]:
    return present(type={"enum": [kind]}, **fields)


class TextBlock(WireModel, json_schema_extra=_of_type("text", text=STRING)):
    type: str = Field(json_schema_extra={"enum": ["text"]})
    text: str | None = None


BLOCK_FIELDS = {
    "anyOf": [
        _of_type("text", text=STRING),
        _of_type("thinking", thinking=STRING),
        _of_type("redacted_thinking"),
        _of_type("tool_use", id=STRING, name=STRING, input=OBJECT),
        _of_type("tool_result", tool_use_id=STRING),
    ]
}


class ContentBlock(WireModel, json_schema_extra=BLOCK_FIELDS):
    """A part of a message. `signature` of thinking and `data` of redacted thinking are ignored."""

    type: str = Field(json_schema_extra={"enum": list(BLOCK_TYPES)})
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: TextOr[TextBlock] | None = None
    is_error: bool | None = None


def _blocks_of(role: str) -> dict[str, Any]:
    items = {"properties": {"type": {"enum": list(ROLES[role])}}}
    return present(role={"enum": [role]}, content={"anyOf": [STRING, {"type": "array", "items": items}]})


class InputTurn(WireModel, json_schema_extra={"anyOf": [_blocks_of(role) for role in ROLES]}):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: TextOr[ContentBlock]


ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]


class MessagesTool(WireModel, json_schema_extra=present(name=STRING)):
    type: str | None = Field(None, json_schema_extra={"enum": [None, OWN_TOOL]})
    name: ToolName | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = Field(None, description="may be omitted: a tool without input")
    strict: bool | None = Field(None, description="the input always conforms to the schema")


NAMES_TOOL = {"anyOf": [present(type={"enum": ["auto", "any", "none"]}), present(name=STRING)]}


class ToolUseChoice(WireModel, json_schema_extra=NAMES_TOOL):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(WireModel):
    """`disabled` sets the template variable `enable_thinking` to false, the other types set it to true."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(None, description="accepted and ignored: only max_tokens is a bound")
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="omitted: thinking blocks have only a signature; text is never summarized"
    )


class OutputFormat(WireModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(WireModel):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="the template variable `reasoning_effort`"
    )


ONE_FORMAT = {
    "anyOf": [
        if_given(output_format={"type": "null"}),
        if_given(output_config={"anyOf": [{"type": "null"}, if_given(format={"type": "null"})]}),
    ]
}
REQUIRES_TOOLS = {
    "anyOf": [
        if_given(tool_choice={"anyOf": [{"type": "null"}, if_given(type={"enum": ["auto", "none"]})]}),
        present(tools={"type": "array", "minItems": 1}),
    ]
}


class PromptBody(WireModel):
    """The fields that determine the prompt."""

    messages: Annotated[list[InputTurn], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: TextOr[TextBlock] | None = None
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolUseChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="an earlier name of output_config.format")
    context_management: Any = Field(None, description="accepted and ignored: the client manages its context")
    mcp_servers: list[Any] | None = Field(None, description=NOT_SUPPORTED)
    container: Any = Field(None, description=NOT_SUPPORTED)
    thread: Any = Field(None, description=NOT_SUPPORTED)
    compaction: Any = Field(None, description=NOT_SUPPORTED)
    # An extension.
    keep_system_blocks: bool | None = Field(
        None, description="keep a first system block that changes with every request of an agent"
    )


REQUIRES_TOKEN_IDS = {
    "anyOf": [
        if_given(top_logprobs={"type": "null"}),
        present(octavo=present(token_ids={"enum": [True]})),
    ]
}
OF_PROMPT = {"allOf": [REQUIRES_TOOLS, ONE_FORMAT]}


class MessagesRequest(
    PromptBody, GenerationBody, json_schema_extra={"allOf": [*OF_PROMPT["allOf"], REQUIRES_TOKEN_IDS]}
):
    max_tokens: int = Field(description="a maximum, which may be beyond the context")
    stop_sequences: FailFastList[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, description="0 or -1 disables it")
    metadata: Any = Field(None, description="accepted and ignored")
    service_tier: Any = Field(None, description="accepted and ignored")
    # Extensions.
    min_p: float | None = None
    seed: int | None = None
    top_logprobs: int | None = Field(None, description="shown in `octavo`, next to the token ids")


class CountTokensRequest(PromptBody, json_schema_extra=OF_PROMPT):
    model: str | None = None
