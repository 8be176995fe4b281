"""Convert fields that chats and completions share to `SamplingParams`, grammars and template arguments."""

from typing import Any

import msgspec

from octavo.errors import RequestError
from octavo.frontend.answer_grammar import schema_grammar
from octavo.frontend.intake import FieldGrammar
from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams
from octavo.server.http.errors import unsupported
from octavo.server.ollama.schema import OllamaBody, OllamaOptions

SAME_NAME = ("temperature", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty")
OTHER_NAMES = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}


def sampling_params(body: OllamaBody, defaults: SamplingParams) -> SamplingParams:
    """Return the parameters, with the grammar of `format`. The defaults are those of the checkpoint."""
    options, grammar = body.options or OllamaOptions.model_validate({}), requested_grammar(body)
    _check_supported(options)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs requires logprobs to be true", "top_logprobs")
    values: dict[str, Any] = {name: getattr(options, name) for name in SAME_NAME}
    values |= {
        "top_k": 0 if options.top_k == -1 else options.top_k,
        "repetition_penalty": options.repeat_penalty,
        "max_tokens": options.num_predict if (options.num_predict or 0) > 0 else None,
        "stop": (options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ()),
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
        "grammar": None if grammar is None else grammar.spec,
    }
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return msgspec.structs.replace(defaults, **given)
    except RequestError as error:
        name = OTHER_NAMES.get(error.param or "")
        if error.param is None or name is None:
            raise
        raise RequestError(str(error).replace(error.param, name), f"options.{name}") from error


def requested_grammar(body: OllamaBody) -> FieldGrammar | None:
    if not body.format and not isinstance(body.format, dict):
        return None
    if isinstance(body.format, dict):
        return FieldGrammar("format", schema_grammar(body.format, "format"))
    return FieldGrammar("format", GrammarSpec(GrammarKind.JSON_OBJECT))


def template_arguments(body: OllamaBody) -> dict[str, Any]:
    """Return the variables that the templates of reasoning models read."""
    if body.think is None:
        return {}
    if isinstance(body.think, bool):
        return {"enable_thinking": body.think}
    return {"enable_thinking": True, "reasoning_effort": body.think}


def _check_supported(options: OllamaOptions) -> None:
    off: dict[str, tuple[Any, ...]] = {
        "typical_p": (None, 1),
        "tfs_z": (None, 1),
        "mirostat": (None, 0),
        "penalize_newline": (None, True),
    }
    for name, values in off.items():
        if getattr(options, name) not in values:
            raise unsupported(f"options.{name}", f"options.{name} other than {values[1]!r}")
    if options.has_penalty and options.repeat_last_n not in (None, -1):
        raise unsupported("options.repeat_last_n", "options.repeat_last_n other than -1 with a penalty")
