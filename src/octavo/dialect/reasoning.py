"""<think>what a model says to itself</think> and then the answer."""

import contextlib
from enum import StrEnum

from octavo.dialect.scan import END, SPACE, Emit, HeldBack, Scan, Sink, until

OPEN, CLOSE = "<think>", "</think>"


class Reasons(StrEnum):
    NEVER = "never"
    MAYBE = "maybe"  # if the answer begins with the tag
    BEGUN = "begun"  # the prompt ends with the tag


def reasoning_before(answer: Scan[None], sink: Sink, reasons: Reasons) -> Scan[None]:
    """The reasoning, if there is any, and then everything to `answer`."""
    unread = [] if reasons is Reasons.NEVER else (yield from _reasoning(sink, reasons))
    next(answer)
    with contextlib.suppress(StopIteration):
        for char in unread:
            answer.send(char)
        while True:
            answer.send((yield))


def _reasoning(sink: Sink, reasons: Reasons) -> Scan[list[str]]:
    """Result: characters that belong to the answer."""
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
    if (yield from until(CLOSE, emit=WithoutBorder(sink.reasoning))):
        sink.is_reasoning = False
    while (char := (yield)) == "\n":  # between reasoning and answer
        pass
    return [char]


class WithoutBorder:
    """Hands text on without the newlines around it, which are the tag's."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._last = HeldBack("\n")
        self._has_begun = False

    def __call__(self, text: str) -> None:
        if not self._has_begun:
            text = text.lstrip("\n")
            self._has_begun = bool(text)
        self._emit(self._last.push(text))
