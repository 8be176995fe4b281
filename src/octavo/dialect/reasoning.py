"""Parse <think>reasoning</think> before the answer."""

import contextlib
from enum import StrEnum

from octavo.dialect.scan import END, SPACE, Emit, HeldBack, Scan, Sink, until

OPEN, CLOSE = "<think>", "</think>"


class Reasons(StrEnum):
    NEVER = "never"
    MAYBE = "maybe"  # the answer has reasoning if it begins with the tag
    BEGUN = "begun"  # the prompt ends with the tag


def reasoning_before(answer: Scan[None], sink: Sink, reasons: Reasons) -> Scan[None]:
    """Read the reasoning, if any, and pass the rest to `answer`."""
    unread = [] if reasons is Reasons.NEVER else (yield from _reasoning(sink, reasons))
    next(answer)
    with contextlib.suppress(StopIteration):
        for char in unread:
            answer.send(char)
        while True:
            answer.send((yield))


def _reasoning(sink: Sink, reasons: Reasons) -> Scan[list[str]]:
    """Read the reasoning; return the characters read that belong to the answer."""
    read: list[str] = []
    begun = ""
    while reasons is Reasons.MAYBE:
        char = yield
        read.append(char)
        if begun or char not in SPACE:
            begun += char
        if begun == OPEN:
            break
        if char == END or not OPEN.startswith(begun):
            return read
    sink.is_reasoning = True
    if (yield from until(CLOSE, emit=TrimmedNewlines(sink.reasoning))):
        sink.is_reasoning = False
    while (char := (yield)) == "\n":  # between reasoning and answer
        pass
    return [char]


class TrimmedNewlines:
    """Passes text on without leading and trailing newlines, which belong to the tags."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._last = HeldBack("\n")
        self._has_begun = False

    def __call__(self, text: str) -> None:
        if not self._has_begun:
            text = text.lstrip("\n")
            self._has_begun = bool(text)
        self._emit(self._last.push(text))
