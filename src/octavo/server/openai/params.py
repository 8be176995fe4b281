"""Convert fields that chats and completions share to `SamplingParams` and grammars.

The checkpoint's recommended sampling parameters are the defaults.
"""

from typing import Any

import msgspec

from octavo.errors import RequestError
from octavo.frontend.answer_grammar import schema_grammar
from octavo.frontend.intake import FieldGrammar
from octavo.grammar import specs
from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams
from octavo.server.http.errors import invalid
from octavo.server.openai.schema import ChatRequest, CompletionRequest, SamplingFields, StructuredOutputs

LEGACY_MAX_TOKENS = 16  # default of OpenAI's completions

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
    max_tokens = request.max_completion_tokens
    if max_tokens is None:
        max_tokens = request.max_tokens
    top = request.top_logprobs
    if top is not None and not request.logprobs:
        raise RequestError("top_logprobs requires logprobs to be true", "top_logprobs")
    return _params(
        request, defaults, max_tokens=max_tokens, logprobs=(top or 0) if request.logprobs else None
    )


def completion_params(request: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Return the parameters. With `echo` and `logprobs`, prompt tokens get logprobs like generated ones."""
    max_tokens = LEGACY_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and request.echo:
        max_tokens = 1  # the response shows only the prompt, not the generated token
    prompt_logprobs = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        prompt_logprobs = max(request.logprobs, prompt_logprobs or 0)
    return _params(
        request,
        defaults,
        max_tokens=max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def requested_grammar(body: SamplingFields) -> FieldGrammar | None:
    """Return the grammar of `response_format` or `structured_outputs`; None if any text is allowed."""
    response_format = body.constraining_format
    if body.structured_outputs is not None:
        if response_format is not None:
            raise invalid("give either response_format or structured_outputs, not both", "structured_outputs")
        return _structured(body.structured_outputs)
    if response_format is None:
        return None
    if response_format.type == "json_object":
        return FieldGrammar("response_format", GrammarSpec(GrammarKind.JSON_OBJECT))
    named = response_format.json_schema
    schema = response_format.schema_ if named is None else named.schema_
    param = "response_format.schema" if named is None else "response_format.json_schema.schema"
    if schema is None:
        raise invalid(f"{param} is missing", param)
    return FieldGrammar(param, schema_grammar(schema, param))


def _structured(fields: StructuredOutputs) -> FieldGrammar:
    given = [name for name in ("json_", "regex", "choice", "grammar") if getattr(fields, name) is not None]
    if len(given) != 1:
        raise invalid(
            "structured_outputs requires exactly one of json, regex, choice and grammar", "structured_outputs"
        )
    param = f"structured_outputs.{given[0].rstrip('_')}"
    return FieldGrammar(param, _structured_spec(fields, param))


def _structured_spec(fields: StructuredOutputs, param: str) -> GrammarSpec:
    if isinstance(fields.json_, str):
        return GrammarSpec(GrammarKind.JSON_SCHEMA, fields.json_)
    if fields.json_ is not None:
        return schema_grammar(fields.json_, param)
    if fields.choice is not None:
        return specs.of_choices(fields.choice)
    if fields.regex is not None:
        return GrammarSpec(GrammarKind.REGEX, fields.regex)
    assert fields.grammar is not None
    return GrammarSpec(GrammarKind.LARK, fields.grammar)


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
    """Convert the keys, which are strings in JSON, to token ids."""
    if not all(key.isascii() and key.isdecimal() and len(key) < 10 for key in bias):
        raise RequestError("logit_bias: keys must be token ids, written as strings", "logit_bias")
    return {int(key): value for key, value in bias.items()}
