"""Request bodies of the Responses API: see `server.wire`.

Items and tools are one model each, because unknown types must be rejected by name: the OpenAPI description
says which fields belong to which type.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.frontend.intake import RequestLimits
from octavo.server.openai.schema import MAX_MESSAGES, MAX_TOOLS, FunctionName
from octavo.server.wire import FailFastList, GenerationBody, WireModel, if_given, needs, present

MAX_METADATA = 16
MAX_ID = 256  # characters of a response id
LOGPROBS, ENCRYPTED_REASONING = "message.output_text.logprobs", "reasoning.encrypted_content"
INCLUDABLE = (LOGPROBS, ENCRYPTED_REASONING)

PART_TYPES = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")
REQUIRES_TEXT = {
    "anyOf": [
        present(type={"enum": [kind for kind in PART_TYPES if kind != "refusal"]}, text={"type": "string"}),
        present(type={"const": "refusal"}, refusal={"type": "string"}),
    ]
}


class ItemPart(WireModel, json_schema_extra=REQUIRES_TEXT):
    type: str = Field(json_schema_extra={"enum": list(PART_TYPES)})
    text: str | None = None
    refusal: str | None = None


STRING = {"type": "string"}
TEXT_OR_PARTS = {"type": ["string", "array"]}
ROLES = ("user", "assistant", "system", "developer")
MESSAGE = {
    "required": ["role", "content"],
    "properties": {"type": {"enum": [None, "message"]}, "role": STRING, "content": TEXT_OR_PARTS},
}
REFERENCE = {
    "required": ["id"],
    "properties": {
        "type": {"enum": [None, "item_reference"]},
        "id": STRING,
    },
    "anyOf": [present(type={"const": "item_reference"}), if_given(role={"type": "null"})],
}
ITEM_FORMS: dict[str, dict[str, Any]] = {
    "reasoning": present(type={"const": "reasoning"})
    | {"properties": {"type": {"const": "reasoning"}, "content": {"type": ["array", "null"]}}},
    "function_call": present(
        type={"const": "function_call"},
        call_id=STRING,
        name=STRING,
        arguments={"type": "string", "contentMediaType": "application/json"},
    ),
    "function_call_output": present(
        type={"const": "function_call_output"}, call_id=STRING, output=TEXT_OR_PARTS
    ),
    "custom_tool_call": present(
        type={"const": "custom_tool_call"}, call_id=STRING, name=STRING, input=STRING
    ),
    "custom_tool_call_output": present(
        type={"const": "custom_tool_call_output"}, call_id=STRING, output=TEXT_OR_PARTS
    ),
}


class InputItem(WireModel, json_schema_extra={"anyOf": [MESSAGE, REFERENCE, *ITEM_FORMS.values()]}):
    type: str | None = Field(
        None, description="absent: a message if the item has a role, else an item reference"
    )
    id: str | None = Field(None, description="used only in references: the server names the items it stores")
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | FailFastList[ItemPart] | None = None
    summary: FailFastList[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | FailFastList[ItemPart] | None = None

    @property
    def kind(self) -> str:
        return self.type or ("item_reference" if self.role is None else "message")


# -- tools -------------------------------------------------------------------------------------------------


NEEDS_DEFINITION = {
    "anyOf": [present(type={"const": "text"}), present(type={}, syntax=STRING, definition=STRING)]
}


class CustomFormat(WireModel, json_schema_extra=NEEDS_DEFINITION):
    type: Literal["text", "grammar"]
    syntax: str | None = Field(None, json_schema_extra={"enum": [None, "lark", "regex"]})
    definition: str | None = None


class CallableTool(WireModel):
    """A function, or a custom tool, whose input is text."""

    type: Literal["function", "custom"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="a JSON schema; null for a function without parameters"
    )
    strict: bool | None = Field(None, description="arguments always conform to the schema")
    format: CustomFormat | None = Field(None, description="of the input of a custom tool")


NamespaceTools = Annotated[list[CallableTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
NEEDS_TOOLS = {
    "anyOf": [
        present(type={"enum": ["function", "custom"]}),
        present(type={"const": "namespace"}, tools={"type": "array"}),
    ]
}


class ResponsesTool(WireModel, json_schema_extra=NEEDS_TOOLS):
    type: str = Field(json_schema_extra={"enum": ["function", "custom", "namespace"]})
    name: FunctionName | None = Field(None, json_schema_extra={"type": "string"})
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: CustomFormat | None = None
    tools: NamespaceTools | None = Field(None, description="of a namespace")


class NamedChoice(WireModel):
    type: Literal["function", "custom"]
    name: FunctionName


class AllowedTools(WireModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


# -- the body ----------------------------------------------------------------------------------------------


class ReasoningOptions(WireModel):
    effort: str | None = Field(None, description="passed to the chat template as reasoning_effort")
    summary: str | None = Field(None, description="accepted and ignored: reasoning is returned as it is")


NEEDS_SCHEMA = {
    "anyOf": [
        present(type={"enum": ["text", "json_object"]}),
        present(type={"const": "json_schema"}, schema={"type": "object"}),
    ]
}


class TextFormat(WireModel, json_schema_extra=NEEDS_SCHEMA):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="accepted: answers always conform to the schema")


class TextOptions(WireModel):
    format: TextFormat | None = None
    verbosity: str | None = Field(None, description="accepted and ignored")


Items = Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=MAX_METADATA, json_schema_extra={"propertyNames": {"maxLength": 64}}),
]
REQUIRES_INPUT = {
    "anyOf": [*needs(input=["string", "array"]), present(previous_response_id=STRING)],
    "allOf": [
        {
            "anyOf": [
                if_given(tool_choice={"enum": [None, "none", "auto"]}),
                present(tools={"type": "array", "minItems": 1}),
            ]
        }
    ],
}


class ResponsesRequest(GenerationBody, json_schema_extra=REQUIRES_INPUT):
    input: str | Items | None = None
    instructions: str | None = Field(None, description="a system message before the input")
    previous_response_id: Annotated[str, Field(max_length=MAX_ID)] | None = Field(
        None, description="id of a stored response: its input and output come before the input"
    )
    store: bool | None = Field(None, description="false: the response is not kept")
    max_output_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="a bound: an answer may end earlier, with the context"
    )
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=RequestLimits.max_logprobs)] | None = None
    include: (
        Annotated[
            list[Annotated[str, Field(json_schema_extra={"enum": list(INCLUDABLE)})]],
            Field(max_length=64, fail_fast=True),
        ]
        | None
    ) = Field(
        None,
        description=f"{LOGPROBS} adds those of all generated tokens, without tools only;"
        f" {ENCRYPTED_REASONING} is accepted and ignored: reasoning is not encrypted",
    )
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = Field(None, description="false limits an answer to one call")
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    metadata: Metadata | None = None
    # Accepted and ignored, because they do not concern the answer of this server.
    service_tier: str | None = Field(None, description="accepted and ignored")
    safety_identifier: str | None = Field(None, description="accepted and ignored")
    user: str | None = Field(None, description="accepted and ignored")
    prompt_cache_key: str | None = Field(None, description="accepted and ignored: prefixes are always cached")
    prompt_cache_retention: str | None = Field(None, description="accepted and ignored")
    max_tool_calls: int | None = Field(
        None, description="accepted and ignored: it limits hosted tools, which this server does not have"
    )
    # Not supported.
    background: bool | None = Field(None, description="only false is supported")
    truncation: str | None = Field(None, description="only disabled is supported")
    conversation: Any = Field(None, description="not supported")
    prompt: Any = Field(None, description="not supported", json_schema_extra={"enum": [None]})
    context_management: Any = Field(None, description="not supported", json_schema_extra={"enum": [None, []]})
    moderation: Any = Field(None, description="not supported")
    # Extensions.
    seed: int | None = None
    top_k: int | None = Field(None, description="0 or -1 disables it")
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | FailFastList[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def includes_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def has_logprobs(self) -> bool:
        """Whether messages have log-probabilities. With tools, only the `octavo` object has them."""
        return self.includes_logprobs or bool(self.top_logprobs and not self.tools)
