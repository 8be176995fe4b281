"""Reading an answer character by character, while it is being written.

A *scan* is a generator that is sent one character at a time, and `END` after the last. It reads like a
parser that has the whole text, because `yield` is where it waits for more:

    char = yield                          the next character
    value = yield from json_string()      a part that is read by another scan

What it finds it hands to a `Sink`. It never looks ahead: how the text was cut cannot change what is found.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import msgspec

from octavo.dialect.pieces import CallArguments, CallStart, Content, FunctionCall, Piece, Reasoning

Result = TypeVar("Result")
Scan = Generator[None, str, Result]
Emit = Callable[[str], None]

END = ""
SPACE = " \t\r\n"


class NotACall(Exception):
    """What looked like a call is none, or breaks off. See `attempt`."""


class HeldBack:
    """Holds characters of some kind back while they are the last. Each costs the same, however many."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._held: list[str] = []

    def push(self, text: str) -> str:
        """The text that something follows, or that is not of that kind."""
        kept = text.rstrip(self._kind)
        certain = self.drop() + kept if kept else ""
        self._held.append(text[len(kept) :])
        return certain

    def drop(self) -> str:
        """What is held, which is then forgotten."""
        held = "".join(self._held)
        self._held.clear()
        return held


class Sink:
    """Where scans put what they find. Emptied by the reader after every push."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.num_calls = 0
        self.is_reasoning = False
        self._space = HeldBack(SPACE)  # at the end of the content so far: dropped if a call follows

    def content(self, text: str) -> None:
        if kept := self._space.push(text):
            self.pieces.append(Content(kept))

    def end_content(self) -> None:
        """Nothing follows: space at the end was meant."""
        space = self._space.drop()
        if space and not self.num_calls:
            self.pieces.append(Content(space))

    def reasoning(self, text: str) -> None:
        if text:
            self.pieces.append(Reasoning(text))

    def start_call(self, name: str) -> None:
        self._space.drop()
        self.pieces.append(CallStart(self.num_calls, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Of the call that was started last."""
        if text:
            self.pieces.append(CallArguments(self.num_calls - 1, text))

    def calls(self, calls: Sequence[FunctionCall]) -> None:
        """Those that are read as a whole."""
        for call in calls:
            self.start_call(call.name)
            self.arguments(call.arguments)


def until(*tags: str, emit: Emit, read: str = "") -> Scan[str]:
    """Text up to a tag, which is consumed; the result is that tag, or END. No tag begins with another.

    Text is emitted as soon as it cannot be a tag. `read` was read before, and has no whole tag.
    """
    held = ""
    for char in read:
        held = _shifted(held + char, tags, emit)
    while True:
        char = yield
        if char == END:
            emit(held)
            return END
        held = _shifted(held + char, tags, emit)
        if held in tags:
            return held


def _shifted(held: str, tags: Sequence[str], emit: Emit) -> str:
    """The longest end of `held` that a tag may begin with; what is before it is emitted."""
    border = next(cut for cut in range(len(held) + 1) if any(tag.startswith(held[cut:]) for tag in tags))
    emit(held[:border])
    return held[border:]


def attempt(scan: Scan[None], sink: Sink, *, read: str = "") -> Scan[bool]:
    """Carry out a scan, and say whether it found a call.

    If it found none, what it has consumed, and `read` before it, is content. A call that has started and
    then breaks off stays: a stream has told it already.
    """
    num_calls = sink.num_calls
    next(scan)
    while True:
        char = yield
        read += char
        try:
            scan.send(char)
            if char != END:
                continue  # else it waits for what will never come
        except StopIteration:
            return True
        except NotACall:
            pass
        if sink.num_calls == num_calls:
            sink.content(read)
        return sink.num_calls > num_calls


def all_content(sink: Sink) -> Scan[None]:
    """Whatever comes."""
    while True:
        sink.content((yield))


def ignore(text: str) -> None:
    """Emits nothing."""


def until_no_space() -> Scan[str]:
    """The next character that is not space, and the space before it."""
    read = ""
    while True:
        char = yield
        read += char
        if char == END or char not in SPACE:
            return read


def after_space() -> Scan[str]:
    """The next character that is not space."""
    return (yield from until_no_space()).lstrip(SPACE)


def json_string() -> Scan[str]:
    """The rest of a string whose opening quote was read: its raw text with both quotes."""
    raw = ['"']
    yield from _rest_of_string(raw.append)
    return "".join(raw)


def json_value(first: str, emit: Emit) -> Scan[str | None]:
    """A value that begins with `first`, emitted as it comes. Result: the character after it, if it was read.

    Only strings, brackets and braces tell their end; a number ends where something else begins.
    """
    if first == '"':
        emit(first)
        yield from _rest_of_string(emit)
        return None
    if first in "{[":
        emit(first)
        depth = 1
        while depth:
            char = yield
            if char == END:
                raise NotACall
            emit(char)
            if char == '"':
                yield from _rest_of_string(emit)
            else:
                depth += (char in "{[") - (char in "}]")
        return None
    word = first
    while True:
        char = yield
        if char == END or char in SPACE or char in ",}]":
            emit(word)
            return char
        word += char


def _rest_of_string(emit: Emit) -> Scan[None]:
    """Up to the closing quote, handed on character by character."""
    escaped = False
    while True:
        char = yield
        if char == END:
            raise NotACall
        emit(char)
        if not escaped and char == '"':
            return
        escaped = not escaped and char == "\\"


def decoded(raw: str) -> str:
    """The text that a JSON string stands for."""
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError as error:
        raise NotACall from error
