"""Request bodies of the OpenAI API: see `server.wire`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from octavo.frontend.intake import RequestLimits
from octavo.grammar.limits import GrammarLimits
from octavo.server.event_ids import MAX_ID
from octavo.server.wire import FailFastList, GenerationBody, Item, WireModel, if_given, needs, present

MAX_MESSAGES = 8192
MAX_TOOLS = 128
MAX_PROMPTS = 16384  # far above the bound in `admission.Admission`

Prompts = Annotated[list[Item], Field(fail_fast=True, max_length=MAX_PROMPTS)]
TokenIds = FailFastList[int]


def _check_num_entries(value: Any) -> Any:
    """Check the number of entries before validation, which does not stop early in a dict."""
    if isinstance(value, dict) and len(value) > RequestLimits.max_logit_bias:
        raise PydanticCustomError("too_long", f"at most {RequestLimits.max_logit_bias} entries are allowed")
    return value


Biases = Annotated[dict[str, float], BeforeValidator(_check_num_entries)]


TEXT_PARTS = ("text", "refusal", "input_text", "output_text")


class StreamOptions(WireModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_event_ids: bool | None = Field(None, description="send an id with each event, for resume_from")


class NamedSchema(WireModel):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


REQUIRES_SCHEMA = {
    "anyOf": [
        present(type={"enum": ["text", "json_object"]}),
        present(json_schema={"type": "object", **present(schema={"type": "object"})}),
        {"required": ["schema"], **if_given(schema={"type": "object"}, json_schema={"type": "null"})},
    ]
}


class ResponseFormat(WireModel, json_schema_extra=REQUIRES_SCHEMA):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="the schema itself, as some clients send it"
    )


ONE_CONSTRAINT = {"oneOf": needs(json=["object", "string"], regex="string", choice="array", grammar="string")}


class StructuredOutputs(WireModel, json_schema_extra=ONE_CONSTRAINT):
    """Exactly one constraint on the whole answer."""

    json_: dict[str, Any] | str | None = Field(None, alias="json", description="a JSON schema")
    regex: str | None = None
    choice: FailFastList[Annotated[str, Field(min_length=1)]] | None = Field(
        None, json_schema_extra={"minItems": 1, "maxItems": GrammarLimits().max_choices}
    )
    grammar: str | None = Field(None, description="a context-free grammar in Lark's notation")


class SamplingFields(GenerationBody):
    """Fields that completions and chat completions share."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | FailFastList[str] | None = None
    seed: int | None = None
    logit_bias: Biases | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="accepted and ignored")
    # Extensions of the OpenAI API.
    top_k: int | None = Field(None, description="0 or -1 disables it")
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    timings_per_token: bool | None = Field(
        None, description="add `timings` of llama.cpp to the response, or to the last event of a stream"
    )
    resume_from: Annotated[str, Field(max_length=MAX_ID)] | None = Field(
        None, description="id of the last event received: the stream continues after it"
    )

    @property
    def constraining_format(self) -> ResponseFormat | None:
        """The response format; None if it allows any text."""
        given = self.response_format
        return None if given is None or given.type == "text" else given

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def includes_event_ids(self) -> bool:
        return bool(self.stream and self.stream_options and self.stream_options.include_event_ids)

    @property
    def last_event_id(self) -> str | None:
        return self.resume_from


class CompletionRequest(SamplingFields):
    prompt: str | Prompts[str] | TokenIds | Prompts[TokenIds]
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None
    suffix: str | None = Field(
        None,
        description="the text after the answer; only for models with tokens to fill in the middle, with"
        " prompts of text, and without echo",
    )
    best_of: int | None = Field(None, description="supported only if it equals n")


REQUIRES_TEXT = {
    "anyOf": [
        present(type={"enum": [kind for kind in TEXT_PARTS if kind != "refusal"]}, text={"type": "string"}),
        present(type={"enum": ["refusal"]}, refusal={"type": "string"}),
    ]
}


class ContentPart(WireModel, json_schema_extra=REQUIRES_TEXT):
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


REQUIRES_CONTENT = {
    "anyOf": [
        *needs(content=["string", "array"], refusal="string"),
        present(tool_calls={"type": "array", "minItems": 1}),
    ]
}


class Message(WireModel, json_schema_extra=REQUIRES_CONTENT):
    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | FailFastList[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: FailFastList[ToolCall] | None = None
    tool_call_id: str | None = None


FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class FunctionDefinition(WireModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="a JSON schema; null for a function without parameters"
    )
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
    """Fields that control how the chat template renders messages."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


REQUIRES_TOOLS = {
    "anyOf": [
        if_given(tool_choice={"enum": [None, "none", "auto"]}),
        present(tools={"type": "array", "minItems": 1}),
    ]
}


class ChatRequest(SamplingFields, TemplateFields, json_schema_extra=REQUIRES_TOOLS):
    messages: Messages
    max_completion_tokens: int | None = Field(None, description="takes precedence over max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = None
    prompt_cache_key: str | None = Field(None, description="accepted and ignored: prefixes are always cached")
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = Field(None, description="false limits an answer to one call")
    functions: list[Any] | None = Field(None, description="not supported")
    function_call: Any = Field(None, description="not supported")
    modalities: FailFastList[str] | None = Field(None, description="only text is supported")
    audio: Any = Field(None, description="not supported")
    web_search_options: Any = Field(None, description="not supported")


class TokenizeRequest(TemplateFields, json_schema_extra={"oneOf": needs(prompt="string", messages="array")}):
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(WireModel):
    model: str | None = None
    tokens: TokenIds
