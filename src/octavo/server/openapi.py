"""The description of the API, for machines. We read bodies ourselves, within limits, so FastAPI sees neither
their models nor what can go wrong: it is told here. Bounds are those of the one door, `frontend.intake`."""

import copy
from typing import Any

import pydantic
from fastapi import FastAPI

from octavo.frontend.intake import PRIORITY, TIMEOUT, Limits, whole_numbers
from octavo.frontend.text_model import TextModel
from octavo.protocol import LOGIT_BIAS, NUMBERS
from octavo.server.state import ServerState

Schema = dict[str, Any]

BODY_ERRORS = (400, 404, 413, 415)
GENERATION_ERRORS = (*BODY_ERRORS, 408, 429, 503)
ERRORS = {
    400: "a field is wrong: `param` names it",
    401: "no valid API key",
    404: "there is no such model",
    408: "the body, or the answer, was not complete in time",
    413: "the body is too large",
    415: "the body is not JSON",
    421: "the server does not answer to this name",
    429: "too many requests are waiting: see Retry-After",
    500: "the server is at fault; its log has more",
    503: "the server is loading, restarting or shutting down: see Retry-After",
}
ERROR_SCHEMA: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
EVENTS: Schema = {
    "description": "the answer; server-sent events if `stream` is true",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}
# Of fields that are there to be refused by name, what is no request for anything.
NOTHING: Schema = {"enum": [None]}
ONLY: dict[str, Schema] = {
    "audio": NOTHING,
    "web_search_options": NOTHING,
    "function_call": NOTHING,
    "functions": {"enum": [None, []]},
    "modalities": {"enum": [None, ["text"]]},
    "suffix": {"enum": [None, ""]},
}
UNKNOWN_SIZE = 1 << 31  # of what only an engine that is ready can say


def json_body(model: type[pydantic.BaseModel]) -> Schema:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _inlined(schema, definitions)}},
        }
    }


def query(**parameters: Schema) -> Schema:
    """What may stand behind the question mark, for `openapi_extra` of an endpoint that reads it itself."""
    return {"parameters": [{"name": name, "in": "query", "schema": s} for name, s in parameters.items()]}


def failures(*statuses: int) -> dict[int | str, Schema]:
    """What may come instead of an answer, for `responses` of an endpoint."""
    return {
        status: {
            "description": ERRORS[status],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status in statuses
    }


def describe(app: FastAPI, state: ServerState) -> Schema:
    """With the bounds of this server and its model, once they are known."""
    facts = state.supervisor.facts
    limits = Limits(
        UNKNOWN_SIZE if facts is None else facts.vocab_size,
        UNKNOWN_SIZE if facts is None else facts.max_model_len,
        max_n=state.options.max_n,
    )
    document = copy.deepcopy(app.openapi())
    components = document.setdefault("components", {})
    components["schemas"] = {"Error": ERROR_SCHEMA}
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path in document["paths"].values():
        for operation in path.values():
            # FastAPI's own guess at what happens to a wrong parameter.
            operation["responses"].pop("422", None)
            if app.state.keys.keys and "401" in operation["responses"]:
                operation["security"] = [{"key": []}]
            for content in operation.get("requestBody", {}).get("content", {}).values():
                _bound(content["schema"]["properties"], limits, state.model)
    return document


def _bound(properties: Schema, limits: Limits, model: TextModel) -> None:
    """Write into the fields of a body what they may be."""
    ids = {"minimum": 0, "maximum": limits.vocab_size - 1}
    words: dict[str, dict[str, Schema]] = {  # of a field, by the JSON type they are about
        "model": {"string": {"enum": [model.name]}},
        "stop": {
            "string": {"minLength": 1, "maxLength": limits.max_stop_bytes},
            "array": {"maxItems": limits.max_stop_strings},
        },
        "stop_token_ids": {"integer": ids, "array": {"maxItems": limits.max_stop_token_ids}},
        "prompt": {"integer": ids, "array": {"minItems": 1}},
        "tokens": {"integer": {"minimum": 0, "maximum": model.tokenizer.vocab_size - 1}},
        "logit_bias": {
            "number": _from_to(LOGIT_BIAS),
            "object": {
                "maxProperties": limits.max_logit_bias,
                "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            },
        },
        "priority": {"integer": _from_to(PRIORITY)},
        "timeout": {"number": _from_to(TIMEOUT)},
    }
    words |= {name: {"number": _from_to(allowed)} for name, allowed in NUMBERS.items()}
    words |= {name: {"integer": _from_to(allowed)} for name, allowed in whole_numbers(limits).items()}
    words["top_p"] = {"number": {"exclusiveMinimum": 0, "maximum": 1}}
    words["top_k"] = {"integer": {**words["top_k"]["integer"], "minimum": -1}}
    words["top_logprobs"] = words["logprobs"]
    words["max_completion_tokens"] = words["max_tokens"]
    words["best_of"] = words["n"]  # that they must be equal, no schema can say
    if "echo" in properties:  # with it, 0 asks for the prompt only
        words["max_tokens"] = {"integer": {**words["max_tokens"]["integer"], "minimum": 0}}
        # With a token that begins every text, an empty text is a prompt.
        if not model.tokenizer.encode(""):
            words["prompt"]["string"] = {"minLength": 1}
    for name in words.keys() & properties.keys():
        _write(properties[name], words[name])
    for name in ONLY.keys() & properties.keys():
        properties[name] |= ONLY[name]


def _write(schema: Schema, words: dict[str, Schema]) -> None:
    """Into the schema and everything it is made of."""
    schema.update(words.get(schema.get("type", ""), {}))
    for part in (*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, dict):
            _write(part, words)


def _from_to(allowed: tuple[float, float]) -> Schema:
    return {"minimum": allowed[0], "maximum": allowed[1]}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """None of our models contains itself, so references can be replaced by what they refer to."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}
