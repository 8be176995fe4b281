"""How errors and answers look in the APIs of other clients: Anthropic's, OpenAI's Responses, and Ollama's."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from attacker.wire import Reply
from data.json_types import Json, JsonObject
from server.hostile import LEAKS

MESSAGES, COUNT_TOKENS, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
OLLAMA = "/api/"
ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
CODES_OF_FAILURES = ("prompt_not_made", "grammar_not_checked", "engine_failed")
DOCUMENTED_ENDS = {"408 deadline_exceeded": "did not finish before its deadline"}
INTERNAL = "error id"  # the message of an internal error names one


@dataclass(frozen=True)
class Form:
    """One API. If its errors have no codes, a status stands for all labels that begin with it."""

    path: str  # its beginning
    media_type: str  # of streams
    error: Callable[[int, Json], str] | None  # checks an error and returns its message; None: OpenAI's form
    whole: Callable[[JsonObject], bool]  # whether a body is a complete answer
    last: Callable[[JsonObject], bool]  # whether an event ends a stream
    failure: Callable[[JsonObject], str | None]  # the message of an event that is an error


def form_of(path: str) -> Form | None:
    """Return the form of the replies at a path; None for that of chats and completions."""
    path = path.partition("?")[0]
    return next((form for form in FORMS if path == form.path or path.startswith(form.path + "/")), None)


def problem_in(
    form: Form, reply: Reply, expected: Iterable[str], is_explained: Callable[[str], bool]
) -> str | None:
    """Return how a complete answer, or an error without a code, differs from the documentation."""
    expected = frozenset(expected)
    statuses = {label.partition(" ")[0] for label in expected}
    if form.path == MESSAGES and "429" in statuses:
        statuses.add("529")
    try:
        failures = list(_failures(form, reply))
    except (ValueError, LookupError, TypeError) as error:
        return f"status {reply.status}: {error!r} in {bytes(reply.body[-300:])!r}"
    for message in failures:
        if not message or LEAKS.search(message) or INTERNAL in message:
            return f"status {reply.status}: an error without a message, or with internals: {message!r}"
    label = str(reply.status)
    codes = ("",) if reply.status < 500 else CODES_OF_FAILURES
    if label not in statuses and not any(is_explained(f"{label} {code}".rstrip()) for code in codes):
        return f"{label} is not documented for this request: {bytes(reply.body[:300])!r}"
    if label in ("429", "503", "529") and "retry-after" not in reply.headers:
        return f"{label} has no Retry-After"
    if reply.status >= 400 or not failures:
        return None
    if any(is_explained(f"event {code}") for code in CODES_OF_FAILURES):
        return None
    if any(one in expected and text in failures[0] for one, text in DOCUMENTED_ENDS.items()):
        return None
    return f"a stream ended with an error that nothing explains: {failures[0]}"


def events_of_stream(reply: Reply) -> list[JsonObject]:
    """Return the events of a stream, or the lines, and check that their names are those of their types."""
    body = bytes(reply.body).decode()
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return [json.loads(line) for line in body.split("\n") if line]
    events = []
    *blocks, rest = body.split("\n\n")
    _require(not rest, "the stream ends within an event")
    for block in blocks:
        if block.startswith(":"):
            continue
        name, _, data = block.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        _require(name == f"event: {event['type']}", f"the event {name!r} has the type {event['type']!r}")
        events.append(event)
    return events


def _failures(form: Form, reply: Reply) -> Iterator[str]:
    """Yield the messages of errors. Raises ValueError if the reply has another form than its API."""
    if reply.status >= 400:
        assert form.error is not None
        yield form.error(reply.status, reply.json)
        return
    if not reply.headers.get("content-type", "").startswith(form.media_type):
        _require(form.whole(reply.json), "the answer is not complete")
        return
    events = events_of_stream(reply)
    ends = [form.last(event) or form.failure(event) is not None for event in events]
    _require(
        ends == [False] * (len(ends) - 1) + [True], f"a stream of {len(ends)} events ends {sum(ends)} times"
    )
    if (message := form.failure(events[-1])) is not None:
        yield message


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def _anthropic_error(status: int, body: Json) -> str:
    kind = ANTHROPIC_KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    _require(set(body) == {"type", "error", "request_id"} and body["type"] == "error", f"the error {body}")
    details = body["error"].get("details", NO_THREADS)  # only of one error
    _require(set(body["error"]) - {"details"} == {"type", "message"}, f"the error {body}")
    _require(details == NO_THREADS, f"the error {body}")
    _require(body["error"]["type"] == kind, f"an error of the type {body['error']['type']!r}, not {kind!r}")
    return str(body["error"]["message"])


def _ollama_error(_: int, body: Json) -> str:
    _require(set(body) == {"error"} and isinstance(body["error"], str), f"the error {body}")
    return str(body["error"])


FORMS = (
    Form(
        MESSAGES,
        "text/event-stream",
        _anthropic_error,
        whole=lambda body: body.get("stop_reason") is not None or isinstance(body.get("input_tokens"), int),
        last=lambda event: event["type"] == "message_stop",
        failure=lambda event: event["error"]["message"] if event["type"] == "error" else None,
    ),
    Form(
        RESPONSES,
        "text/event-stream",
        None,
        whole=lambda body: body.get("status") in ("completed", "incomplete") or "status" not in body,
        last=lambda event: event["type"] in ("response.completed", "response.incomplete"),
        failure=lambda event: (
            event["response"]["error"]["message"] if event["type"] == "response.failed" else None
        ),
    ),
    Form(
        OLLAMA.rstrip("/"),
        "application/x-ndjson",
        _ollama_error,
        whole=lambda body: body.get("done", True) is True and "error" not in body,
        last=lambda line: line.get("done") is True,
        failure=lambda line: line.get("error"),
    ),
)
