"""Request bodies of Ollama's API: see `server.wire`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.server.wire import FailFastList, GenerationBody, WireModel, if_given, needs

MAX_MESSAGES = 8192
MAX_TOOLS = 128
NO_EFFECT = "accepted; has no effect"
NOTHING: dict[str, Any] = {"enum": [None]}
NO_LIST: dict[str, Any] = {"enum": [None, []]}
NO_TEXT: dict[str, Any] = {"enum": [None, ""]}


class OllamaOptions(WireModel):
    """Sampling parameters, and settings of Ollama's own engine, which have no effect."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, description="0 or -1 disables it")
    min_p: float | None = None
    seed: int | None = None
    num_predict: int | None = Field(
        None, description="maximum number of tokens; 0 and less: until the model stops or the context is full"
    )
    stop: str | FailFastList[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # Other methods of sampling: only values that turn them off.
    typical_p: float | None = Field(None, description="only 1", json_schema_extra={"enum": [None, 1]})
    tfs_z: float | None = Field(None, description="only 1", json_schema_extra={"enum": [None, 1]})
    mirostat: int | None = Field(None, description="only 0", json_schema_extra={"enum": [None, 0]})
    repeat_last_n: int | None = Field(
        None,
        description="only -1: penalties apply to the whole answer and prompt; any number without penalties",
    )
    penalize_newline: bool | None = Field(
        None, description="only true", json_schema_extra={"enum": [None, True]}
    )
    mirostat_tau: float | None = Field(None, description=NO_EFFECT)
    mirostat_eta: float | None = Field(None, description=NO_EFFECT)
    num_ctx: int | None = Field(None, description=f"{NO_EFFECT}: the server decides on the context")

    @property
    def has_penalty(self) -> bool:
        return self.repeat_penalty not in (None, 1) or any((self.presence_penalty, self.frequency_penalty))


class OllamaBody(GenerationBody):
    """The fields that chats and completions share."""

    stream: bool | None = Field(None, description="the default is true")
    format: Literal["", "json"] | dict[str, Any] | None = Field(
        None, description='"json" for any JSON object, or a JSON schema'
    )
    options: OllamaOptions | None = None
    think: bool | Literal["low", "medium", "high"] | None = Field(
        None, description="whether the model reasons before its answer, if its chat template has a choice"
    )
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: Any = Field(None, description=f"{NO_EFFECT}: the model is always loaded")

    @property
    def is_stream(self) -> bool:
        return self.stream is not False


class OllamaCalledFunction(WireModel):
    name: str
    arguments: dict[str, Any] | None = None


class OllamaCall(WireModel):
    id: str | None = None
    function: OllamaCalledFunction


class OllamaMessage(WireModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: FailFastList[OllamaCall] | None = None
    tool_name: str | None = Field(None, description="the function that returned this result")
    tool_call_id: str | None = Field(None, description="the default is the next call without a result")
    images: FailFastList[Any] | None = Field(None, description="not supported", json_schema_extra=NO_LIST)


FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class OllamaFunction(WireModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="a JSON schema")


class OllamaTool(WireModel):
    type: Literal["function"] = "function"
    function: OllamaFunction


class OllamaChat(OllamaBody):
    """Without messages, the response says that the model is loaded."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None


NO = {"enum": [None, False]}
SUFFIX_WITHOUT_RAW = {"anyOf": [if_given(raw=NO), if_given(suffix=NO_TEXT)]}
WITH_TEMPLATE = {"anyOf": [if_given(raw=NO, suffix=NO_TEXT), if_given(system=NO_TEXT, think=NO)]}


class OllamaCompletion(OllamaBody, json_schema_extra={"allOf": [SUFFIX_WITHOUT_RAW, WITH_TEMPLATE]}):
    """Without a prompt, the response says that the model is loaded."""

    prompt: str | None = None
    system: str | None = None
    suffix: str | None = Field(
        None, description="the text after the answer; only for models with tokens to fill in the middle"
    )
    raw: bool | None = Field(None, description="true: the prompt is used without the chat template")
    template: str | None = Field(None, description="not supported", json_schema_extra=NO_TEXT)
    context: FailFastList[Any] | None = Field(None, description="not supported", json_schema_extra=NO_LIST)
    images: FailFastList[Any] | None = Field(None, description="not supported", json_schema_extra=NO_LIST)
    width: Any = Field(None, description="not supported", json_schema_extra=NOTHING)
    height: Any = Field(None, description="not supported", json_schema_extra=NOTHING)
    steps: Any = Field(None, description="not supported", json_schema_extra=NOTHING)


class OllamaShow(WireModel, json_schema_extra={"anyOf": needs(model="string", name="string")}):
    model: str | None = None
    name: str | None = Field(None, description="the former name of `model`")
