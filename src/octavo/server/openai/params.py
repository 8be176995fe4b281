"""Wire fields to `SamplingParams`, and what else chats and completions ask for alike. What a request leaves
out, the checkpoint's recommendation fills in."""

from typing import Any

import msgspec

from octavo.errors import RequestError
from octavo.frontend.answer_grammar import schema_grammar
from octavo.frontend.intake import FieldGrammar
from octavo.grammar import specs
from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams
from octavo.server.generation import Asked
from octavo.server.http.errors import invalid
from octavo.server.openai.schema import ChatRequest, CompletionRequest, SamplingFields, StructuredOutputs

LEGACY_MAX_TOKENS = 16  # of completions that do not say

SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "seed",
    "n",
    "prompt_logprobs",
    "skip_special_tokens",
)


def chat_params(request: ChatRequest, defaults: SamplingParams) -> SamplingParams:
    longest = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    top = request.top_logprobs
    if top is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
    return _params(request, defaults, max_tokens=longest, logprobs=(top or 0) if request.logprobs else None)


def completion_params(request: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """With `echo` and `logprobs`, the tokens of the prompt are scored as those of the answer are."""
    longest = LEGACY_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if longest == 0 and request.echo:
        longest = 1  # only the prompt is wanted: what is generated is not shown
    scored = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        scored = max(request.logprobs, scored or 0)
    return _params(request, defaults, max_tokens=longest, logprobs=request.logprobs, prompt_logprobs=scored)


def wanted_grammar(body: SamplingFields) -> FieldGrammar | None:
    """What the answer must conform to, in whichever way the client says so; None if any text will do."""
    wanted = body.format_wanted
    if body.structured_outputs is not None:
        if wanted is not None:
            raise invalid("response_format and structured_outputs exclude each other", "structured_outputs")
        return _structured(body.structured_outputs)
    if wanted is None:
        return None
    if wanted.type == "json_object":
        return FieldGrammar("response_format", GrammarSpec(GrammarKind.JSON_OBJECT))
    named = wanted.json_schema
    schema = wanted.schema_ if named is None else named.schema_
    param = "response_format.schema" if named is None else "response_format.json_schema.schema"
    if schema is None:
        raise invalid(f"{param} is missing", param)
    return FieldGrammar(param, schema_grammar(schema, param))


def _structured(wanted: StructuredOutputs) -> FieldGrammar:
    given = [name for name in ("json_", "regex", "choice", "grammar") if getattr(wanted, name) is not None]
    if len(given) != 1:
        raise invalid("structured_outputs takes one of json, regex, choice and grammar", "structured_outputs")
    param = f"structured_outputs.{given[0].rstrip('_')}"
    return FieldGrammar(param, _structured_spec(wanted, param))


def _structured_spec(wanted: StructuredOutputs, param: str) -> GrammarSpec:
    if isinstance(wanted.json_, str):
        return GrammarSpec(GrammarKind.JSON_SCHEMA, wanted.json_)
    if wanted.json_ is not None:
        return schema_grammar(wanted.json_, param)
    if wanted.choice is not None:
        return specs.of_choices(wanted.choice)
    if wanted.regex is not None:
        return GrammarSpec(GrammarKind.REGEX, wanted.regex)
    assert wanted.grammar is not None
    return GrammarSpec(GrammarKind.LARK, wanted.grammar)


def asked_of(request: SamplingFields, response_id: str, identity: str, arrival: float) -> Asked:
    return Asked(
        response_id=response_id,
        identity=identity,
        is_stream=bool(request.stream),
        shows_prompt=request.wants_prompt_shown,
        priority=request.priority or 0,
        arrival=arrival,
        timeout=request.timeout,
        cache_salt=request.cache_salt or "",
    )


def _params(request: SamplingFields, defaults: SamplingParams, **given: Any) -> SamplingParams:
    values = {name: getattr(request, name) for name in SAME_NAME}
    values |= {
        "top_k": 0 if request.top_k == -1 else request.top_k,
        "stop": (request.stop,) if isinstance(request.stop, str) else _tuple(request.stop),
        "stop_token_ids": _tuple(request.stop_token_ids),
        "include_stop": request.include_stop_str_in_output,
        "logit_bias": None if request.logit_bias is None else _by_id(request.logit_bias),
    }
    values |= given
    return msgspec.structs.replace(
        defaults, **{name: value for name, value in values.items() if value is not None}
    )


def _tuple(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _by_id(bias: dict[str, float]) -> dict[int, float]:
    """JSON has text keys only."""
    if not all(key.isascii() and key.isdecimal() and len(key) < 10 for key in bias):
        raise RequestError("logit_bias: keys are token ids, written as text", "logit_bias")
    return {int(key): value for key, value in bias.items()}
