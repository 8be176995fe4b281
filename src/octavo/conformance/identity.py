"""Checks of response and request ids, which users quote when they ask for help."""

from octavo.conformance.check import Check, NotSupported, expect
from octavo.conformance.target import CheckTarget

GROUP = "ids"
HEADER = "x-request-id"


def response_ids(target: CheckTarget) -> None:
    first, second = target.chat(), target.chat()
    expect(first["id"] != second["id"], "two responses have the same id")


def request_ids(target: CheckTarget) -> None:
    replies = (
        target.post("/chat/completions", target.chat_fields()),
        target.post("/chat/completions", target.chat_fields(stream=True)),
        target.post("/chat/completions", target.chat_fields(temperature=-1)),
        target.get("/models"),
    )
    found = [reply.headers.get(HEADER) for reply in replies]
    if not any(found):
        raise NotSupported(f"no {HEADER}")
    kinds = ("an answer", "a stream", "an error", "/models")
    for kind, request_id in zip(kinds, found, strict=True):
        expect(request_id, f"{kind} has no {HEADER}")
    expect(len(set(found)) == len(found), f"several requests have the same {HEADER}")


CHECKS = (
    Check(GROUP, "unique response ids", response_ids),
    Check(GROUP, HEADER, request_ids, is_required=False),
)
