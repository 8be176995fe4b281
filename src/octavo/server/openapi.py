"""The OpenAPI document.

The endpoints read bodies themselves, within limits, so FastAPI knows neither their models nor their errors:
this module adds both. Bounds are those that `frontend.intake` validates.
"""

import copy
from typing import Any

import pydantic
from fastapi import FastAPI

from octavo.frontend.intake import PRIORITY, TIMEOUT, RequestLimits, whole_numbers
from octavo.frontend.text_model import TextModel
from octavo.protocol import LOGIT_BIAS, NUMBERS
from octavo.server.served_names import ServedNames
from octavo.server.state import ServerState
from octavo.text.fill_in_middle import FillInMiddle

Schema = dict[str, Any]

BODY_ERRORS = (400, 404, 413, 415, 429)
GENERATION_ERRORS = (*BODY_ERRORS, 408, 409, 503)
ERRORS = {
    400: "a field is invalid: `param` names it",
    401: "the API key is missing, wrong or expired",
    403: "the API key does not have the role `operator`",
    404: "the server does not have this model or replica",
    408: "the body or the answer was not complete in time",
    409: "the body is not the one that an event id or an Idempotency-Key belongs to, or the state of the"
    " replicas does not allow the command",
    413: "the body is too large",
    415: "the body is not JSON",
    421: "the Host header has a name that the server does not answer to",
    429: "the queue or the memory for requests is full, or the API key has reached a limit: see Retry-After",
    500: "internal error: see the server's log",
    503: "the server is loading, restarting or shutting down: see Retry-After",
    529: "the server is loading, restarting, shutting down or full: see Retry-After",
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
ANTHROPIC_BODY_ERRORS = (*BODY_ERRORS, 529)
ANTHROPIC_GENERATION_ERRORS = (*ANTHROPIC_BODY_ERRORS, 408, 409)
ANTHROPIC_ERROR_SCHEMA: Schema = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"enum": ["error"]},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "details": {"type": "object", "description": "why a client may send the request otherwise"},
            },
        },
        "request_id": {"type": "string"},
    },
}
EVENTS: Schema = {
    "description": "the answer; server-sent events if `stream` is true",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}
LINES_OF_JSON: Schema = {
    "description": "the answer; lines of JSON unless `stream` is false",
    "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
}
IDEMPOTENCY: Schema = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "a request with the key of an earlier one gets the answer of the earlier one",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]*$"},
        },
    ]
}
REPEATED: Schema = {
    "parameters": [
        *IDEMPOTENCY["parameters"],
        {
            "name": "Last-Event-ID",
            "in": "header",
            "description": "the same as `resume_from`",
            "schema": {"type": "string"},
        },
    ]
}
# Accepted values of fields that are not supported: those that ask for nothing.
NOTHING: Schema = {"enum": [None]}
EMPTY: Schema = {"enum": [None, "", [], {}]}
ALLOWED_VALUES: dict[str, Schema] = {
    "audio": NOTHING,
    "web_search_options": NOTHING,
    "function_call": NOTHING,
    "functions": {"enum": [None, []]},
    "modalities": {"enum": [None, ["text"]]},
    "mcp_servers": {"enum": [None, []]},
    "container": EMPTY,
    "thread": EMPTY,
    "compaction": EMPTY,
    "background": {"enum": [None, False]},
    "truncation": {"enum": [None, "disabled"]},
    "conversation": NOTHING,
    "moderation": NOTHING,
}
# In Ollama's API, clients append a tag to the names of models that have none.
OLLAMA, OLLAMA_TAG = "/api/", "latest"
UNKNOWN_SIZE = 1 << 31  # bound until the engine is ready and reports its own


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
    """Return the query parameters, for `openapi_extra` of an endpoint that parses its own."""
    return {"parameters": [{"name": name, "in": "query", "schema": s} for name, s in parameters.items()]}


def failures(*statuses: int, form: str = "Error") -> dict[int | str, Schema]:
    """Return the error responses, for `responses` of an endpoint. `form` is the name of their schema."""
    return {
        status: {
            "description": ERRORS[status],
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{form}"}}},
        }
        for status in statuses
    }


def anthropic_failures(*statuses: int) -> dict[int | str, Schema]:
    return failures(*statuses, form="AnthropicError")


def describe(app: FastAPI, state: ServerState) -> Schema:
    """Return the document with the bounds of this server and, once they are known, of its model."""
    facts = state.replicas.facts
    limits = RequestLimits(
        UNKNOWN_SIZE if facts is None else facts.vocab_size,
        UNKNOWN_SIZE if facts is None else facts.max_model_len,
        max_n=state.options.max_n,
    )
    document = copy.deepcopy(app.openapi())
    components = document.setdefault("components", {})
    components["schemas"] = {"Error": ERROR_SCHEMA, "AnthropicError": ANTHROPIC_ERROR_SCHEMA}
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        names = state.names.with_tag(OLLAMA_TAG) if path.startswith(OLLAMA) else state.names
        for operation in operations.values():
            # FastAPI assumes 422 for wrong parameters.
            operation["responses"].pop("422", None)
            if app.state.keys.is_required and "401" in operation["responses"]:
                operation["security"] = [{"key": []}]
            for content in operation.get("requestBody", {}).get("content", {}).values():
                _bound(content["schema"]["properties"], limits, state.model, names)
    return document


def _bound(properties: Schema, limits: RequestLimits, model: TextModel, names: ServedNames) -> None:
    """Add bounds to the fields of a body."""
    ids = {"minimum": 0, "maximum": limits.vocab_size - 1}
    bounds: dict[str, dict[str, Schema]] = {  # by field and JSON type
        "model": {"string": dict(names.allowed)},
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
    bounds |= {name: {"number": _from_to(allowed)} for name, allowed in NUMBERS.items()}
    bounds |= {name: {"integer": _from_to(allowed)} for name, allowed in whole_numbers(limits).items()}
    bounds["top_p"] = {"number": {"exclusiveMinimum": 0, "maximum": 1}}
    bounds["top_k"] = {"integer": {**bounds["top_k"]["integer"], "minimum": -1}}
    bounds["top_logprobs"] = bounds["logprobs"]
    bounds["max_completion_tokens"] = bounds["max_output_tokens"] = bounds["max_tokens"]
    bounds["stop_sequences"] = bounds["stop"]
    bounds["name"] = bounds["model"]  # in Ollama's API
    bounds["repeat_penalty"] = bounds["repetition_penalty"]
    bounds["num_predict"] = {"integer": {"maximum": bounds["max_tokens"]["integer"]["maximum"]}}
    bounds["best_of"] = bounds["n"]  # a schema cannot say that they must be equal
    if "echo" in properties:  # with echo, 0 means: only the prompt
        bounds["max_tokens"] = {"integer": {**bounds["max_tokens"]["integer"], "minimum": 0}}
        # If the tokenizer adds a BOS token, an empty text is a valid prompt.
        if not model.tokenizer.encode(""):
            bounds["prompt"]["string"] = {"minLength": 1}
    for name in bounds.keys() & properties.keys():
        _apply(properties[name], bounds[name])
    for part in properties.get("options", {}).get("anyOf", ()):
        if "properties" in part:
            _bound(part["properties"], limits, model, names)
    if "suffix" in properties and FillInMiddle.of_tokenizer(model.tokenizer) is None:
        properties["suffix"] |= {"enum": [None, ""]}
    for name in ALLOWED_VALUES.keys() & properties.keys():
        properties[name] |= ALLOWED_VALUES[name]


def _apply(schema: Schema, bounds: dict[str, Schema]) -> None:
    """Add bounds to the schema and, recursively, to its parts."""
    schema.update(bounds.get(schema.get("type", ""), {}))
    for part in (*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(part, dict):
            _apply(part, bounds)


def _from_to(allowed: tuple[float, float]) -> Schema:
    return {"minimum": allowed[0], "maximum": allowed[1]}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return the schema with its references replaced. No model refers to itself, so this ends."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}
