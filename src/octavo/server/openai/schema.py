"""Requests as clients write them. Unknown fields are tolerated, known ones are checked strictly:
a number is a number, not a string of one. Ranges are checked at the one door, `frontend.intake`.

A body is checked by the event loop, so that no body may take long. Lists end at their first wrong item: each
that pydantic collects costs more than a kilobyte, and a body has room for a million.
"""

from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from octavo.frontend.intake import Limits
from octavo.grammar.limits import GrammarLimits

MAX_MESSAGES = 8192
MAX_TOOLS = 128
MAX_SALT = 256  # characters: the prefix cache keeps it as long as a page of it
MAX_PROMPTS = 16384  # far more than may wait, which `admission.Admission` says

Item = TypeVar("Item")
Quick = Annotated[list[Item], Field(fail_fast=True)]
Prompts = Annotated[list[Item], Field(fail_fast=True, max_length=MAX_PROMPTS)]
TokenIds = Quick[int]


def _few_entries(value: Any) -> Any:
    """Before the entries are looked at: dicts have no first wrong one."""
    if isinstance(value, dict) and len(value) > Limits.max_logit_bias:
        raise PydanticCustomError("too_long", f"at most {Limits.max_logit_bias} entries are allowed")
    return value


Biases = Annotated[dict[str, float], BeforeValidator(_few_entries)]


TEXT_PARTS = ("text", "refusal", "input_text", "output_text")


def _needs(**types: Any) -> list[dict[str, Any]]:
    """For the description: each of the fields, with its type, would do. (`null` is as good as nothing.)"""
    return [_with(**{name: {"type": kind}}) for name, kind in types.items()]


def _with(**fields: dict[str, Any]) -> dict[str, Any]:
    """For the description: all of the fields are there, as their schemas say."""
    return {"required": list(fields), "properties": fields}


def _if_given(**fields: dict[str, Any]) -> dict[str, Any]:
    """For the description: those of the fields that are there are as their schemas say."""
    return {"properties": fields}


class WireModel(pydantic.BaseModel, strict=True, extra="ignore", allow_inf_nan=False):
    """`null` always means the same as leaving the field out."""


class StreamOptions(WireModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OctavoOptions(WireModel):
    prompt: bool = Field(False, description="show the prompt as the chat template has rendered it")


class NamedSchema(WireModel):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


HAS_ITS_SCHEMA = {
    "anyOf": [
        _with(type={"enum": ["text", "json_object"]}),
        _with(json_schema={"type": "object", **_with(schema={"type": "object"})}),
        {"required": ["schema"], **_if_given(schema={"type": "object"}, json_schema={"type": "null"})},
    ]
}


class ResponseFormat(WireModel, json_schema_extra=HAS_ITS_SCHEMA):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="the schema itself, as some clients write it"
    )


ONE_CONSTRAINT = {
    "oneOf": _needs(json=["object", "string"], regex="string", choice="array", grammar="string")
}


class StructuredOutputs(WireModel, json_schema_extra=ONE_CONSTRAINT):
    """One of them: what the whole answer must be."""

    json_: dict[str, Any] | str | None = Field(None, alias="json", description="a JSON schema")
    regex: str | None = None
    choice: Quick[Annotated[str, Field(min_length=1)]] | None = Field(
        None, json_schema_extra={"minItems": 1, "maxItems": GrammarLimits().max_choices}
    )
    grammar: str | None = Field(None, description="a context-free grammar in Lark's notation")


class SamplingFields(WireModel):
    """What completions and chat have in common."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | Quick[str] | None = None
    seed: int | None = None
    logit_bias: Biases | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="accepted and ignored")
    # Extensions.
    top_k: int | None = Field(None, description="0 or -1: off")
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    priority: int | None = Field(None, description="smaller is more urgent")
    timeout: float | None = Field(None, description="seconds after which the request is ended")
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = Field(
        None, description="prompts share cached prefixes within a salt only"
    )
    octavo: bool | OctavoOptions | None = Field(None, description="explain the answer")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def format_wanted(self) -> ResponseFormat | None:
        """None if any text will do."""
        wanted = self.response_format
        return None if wanted is None or wanted.type == "text" else wanted

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def wants_explanation(self) -> bool:
        return bool(self.octavo)

    @property
    def wants_prompt_shown(self) -> bool:
        return isinstance(self.octavo, OctavoOptions) and self.octavo.prompt


class CompletionRequest(SamplingFields):
    prompt: str | Prompts[str] | TokenIds | Prompts[TokenIds]
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None
    suffix: str | None = Field(None, description="not supported")
    best_of: int | None = Field(None, description="not supported, unless it equals n")


HAS_ITS_TEXT = {
    "anyOf": [
        _with(type={"enum": [kind for kind in TEXT_PARTS if kind != "refusal"]}, text={"type": "string"}),
        _with(type={"enum": ["refusal"]}, refusal={"type": "string"}),
    ]
}


class ContentPart(WireModel, json_schema_extra=HAS_ITS_TEXT):
    type: str = Field(json_schema_extra={"enum": list(TEXT_PARTS)})
    text: str | None = None
    refusal: str | None = None


class FunctionCall(WireModel):
    name: str
    arguments: str | dict[str, Any] | None = Field(
        None, json_schema_extra={"contentMediaType": "application/json"}
    )


class ToolCall(WireModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


SAYS_SOMETHING = {
    "anyOf": [
        *_needs(content=["string", "array"], refusal="string"),
        _with(tool_calls={"type": "array", "minItems": 1}),
    ]
}


class Message(WireModel, json_schema_extra=SAYS_SOMETHING):
    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | Quick[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Quick[ToolCall] | None = None
    tool_call_id: str | None = None


FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class FunctionDefinition(WireModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="a JSON schema; none: no parameters")
    strict: bool | None = Field(None, description="arguments always conform to the schema")


class Tool(WireModel):
    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(WireModel):
    name: FunctionName


class NamedTool(WireModel):
    type: Literal["function"]
    function: ChosenFunction


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class TemplateFields(WireModel):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


HAS_TOOLS_TO_CHOOSE = {
    "anyOf": [
        _if_given(tool_choice={"enum": [None, "none", "auto"]}),
        _with(tools={"type": "array", "minItems": 1}),
    ]
}


class ChatRequest(SamplingFields, TemplateFields, json_schema_extra=HAS_TOOLS_TO_CHOOSE):
    messages: Messages
    max_completion_tokens: int | None = Field(None, description="wins over max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = None
    prompt_cache_key: str | None = Field(None, description="accepted: prefixes are always cached")
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most")
    functions: list[Any] | None = Field(None, description="not supported")
    function_call: Any = Field(None, description="not supported")
    modalities: Quick[str] | None = Field(None, description="only text")
    audio: Any = Field(None, description="not supported")
    web_search_options: Any = Field(None, description="not supported")


class TokenizeRequest(TemplateFields, json_schema_extra={"oneOf": _needs(prompt="string", messages="array")}):
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(WireModel):
    model: str | None = None
    tokens: TokenIds
