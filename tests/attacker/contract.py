"""Which responses are documented for which action: the table of docs/server.md, by action.

A label is a status, with the code of the error if it has one: `429 rate_limit_exceeded`. An error event in a
stream has the same codes.
"""

import json
from collections.abc import Callable, Iterable

from attacker.answers import answer_of, is_stream
from attacker.api_forms import form_of, problem_in
from attacker.wire import Reply
from data.json_types import Json
from server.hostile import LEAKS

OK = "200"
INVALID = "400"
NO_KEY = "401 invalid_api_key"
OPERATOR_ONLY = "403 operator_key_required"
DEADLINE = "408 deadline_exceeded"
# Overload that this tenant causes itself. All have Retry-After.
OVERLOAD = frozenset({"429 rate_limit_exceeded", "429 too_many_bytes", "429 grammars_busy"})

HONEST = frozenset({OK})
GENERATED = frozenset({OK}) | OVERLOAD
HURRIED = GENERATED | {DEADLINE}
CONSTRAINED = HURRIED | {"400 invalid_grammar", "400 grammar_too_complex", INVALID}
TOO_LONG = HURRIED | {INVALID, "400 context_length_exceeded", "413 request_too_large", "413"}
MALFORMED = (
    CONSTRAINED
    | TOO_LONG
    | {
        "400 unsupported_parameter",
        "404 model_not_found",
        "404",
        "405",
        "408",
        "415",
        "421 host_not_allowed",
        "431",
    }
)
REJECTED = frozenset({NO_KEY, INVALID, OPERATOR_ONLY, "404", "405", "415", "431"})

HAS_RETRY_AFTER = ("429", "503")


def label_of(reply: Reply) -> str:
    """Return the label of a complete reply. Raises ValueError if an error does not have the one JSON form."""
    if reply.status < 400:
        return str(reply.status)
    try:
        error = reply.json["error"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as problem:
        raise ValueError(f"the error is not JSON: {bytes(reply.body[:200])!r}") from problem
    return f"{reply.status} {_checked(error)}".rstrip()


def problems(
    reply: Reply, expected: Iterable[str], is_explained: Callable[[str], bool], path: str
) -> str | None:
    """Return how a complete reply to a request at `path` differs from the documentation, if it does."""
    form = form_of(path)
    if form is not None and (reply.status < 400 or form.error is not None):
        return problem_in(form, reply, expected, is_explained)
    try:
        label = label_of(reply)
        codes = _event_codes(reply)
    except ValueError as error:
        return f"status {reply.status}: {error}"
    expected = frozenset(expected)
    if label not in expected and not is_explained(label):
        return f"{label} is not documented for this request: {bytes(reply.body[:300])!r}"
    if label.startswith(HAS_RETRY_AFTER) and "retry-after" not in reply.headers:
        return f"{label} has no Retry-After"
    for code in codes:
        if not any(one.endswith(f" {code}") for one in expected) and not is_explained(f"event {code}"):
            return f"an event with the error {code} is not documented for this request"
    return None


def _event_codes(reply: Reply) -> list[str]:
    """Check that a stream ends exactly once, and return the codes of its error events."""
    if reply.status != 200 or not is_stream(reply):
        return []
    answer = answer_of(reply)
    if answer.problem is not None:
        raise ValueError(f"{answer.problem}; its last bytes are {bytes(reply.body[-200:])!r}")
    return [_checked(error) for error in answer.errors]


def _checked(error: Json) -> str:
    """Check the form of an error and return its code, or an empty string."""
    if not isinstance(error, dict) or set(error) != {"message", "type", "param", "code"}:
        raise ValueError(f"the error has another form: {error}")
    if not error["message"] or LEAKS.search(str(error["message"])):
        raise ValueError(f"the error has no message, or one with internals: {error}")
    return str(error["code"] or "")
