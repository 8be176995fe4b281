"""Read an answer character by character while it is being generated.

A *scan* is a generator that receives one character at a time, and `END` after the last. Its code looks like
that of a parser of a complete text, because it waits for more text in `yield`:

    char = yield                          the next character
    value = yield from json_string()      a part that another scan reads

It passes results to a `Sink`. It never looks ahead, so results do not depend on how the text was divided.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import msgspec

from octavo.dialect.pieces import CallArguments, CallStart, Content, ParsedCall, Piece, Reasoning

Result = TypeVar("Result")
Scan = Generator[None, str, Result]
Emit = Callable[[str], None]

END = ""
SPACE = " \t\r\n"


class NotACall(Exception):
    """Text that looked like a call is not one, or is incomplete. See `attempt`."""


class HeldBack:
    """Holds back trailing characters of some kind. Each costs constant time, even in long runs."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._held: list[str] = []

    def push(self, text: str) -> str:
        """Add text; return all text up to the last character of another kind."""
        kept = text.rstrip(self._kind)
        released = self.drop() + kept if kept else ""
        self._held.append(text[len(kept) :])
        return released

    def drop(self) -> str:
        """Return the characters held back and stop holding them."""
        held = "".join(self._held)
        self._held.clear()
        return held


class Sink:
    """Collects the results of scans. The reader empties it after every push."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.num_calls = 0
        self.is_reasoning = False
        self._space = HeldBack(SPACE)  # at the end of the content so far; discarded if a call follows

    def content(self, text: str) -> None:
        if kept := self._space.push(text):
            self.pieces.append(Content(kept))

    def end_content(self) -> None:
        """Emit trailing space, which is content if there are no calls."""
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
        """Add to the arguments of the call that started last."""
        if text:
            self.pieces.append(CallArguments(self.num_calls - 1, text))

    def calls(self, calls: Sequence[ParsedCall]) -> None:
        """Add complete calls."""
        for call in calls:
            self.start_call(call.name)
            self.arguments(call.arguments)


def until(*tags: str, emit: Emit, read: str = "") -> Scan[str]:
    """Read text up to and including a tag; return that tag, or END. No tag may begin with another.

    Text is emitted as soon as it cannot be part of a tag. `read` is text that was already read; it must not
    contain a complete tag.
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
    """Return the longest suffix of `held` that is a prefix of a tag; emit the text before it."""
    boundary = next(cut for cut in range(len(held) + 1) if any(tag.startswith(held[cut:]) for tag in tags))
    emit(held[:boundary])
    return held[boundary:]


def attempt(scan: Scan[None], sink: Sink, *, read: str = "") -> Scan[bool]:
    """Run a scan; return whether it found a call.

    If it found none, `read` and the text that it consumed become content. An incomplete call that has started
    is kept, because a stream has already delivered its start.
    """
    num_calls = sink.num_calls
    next(scan)
    while True:
        char = yield
        read += char
        try:
            scan.send(char)
            if char != END:
                continue  # at END, the scan waits for text that will not come
        except StopIteration:
            return True
        except NotACall:
            pass
        if sink.num_calls == num_calls:
            sink.content(read)
        return sink.num_calls > num_calls


def all_content(sink: Sink) -> Scan[None]:
    """Read everything as content."""
    while True:
        sink.content((yield))


def ignore(text: str) -> None:
    """Discard the text."""


def until_no_space() -> Scan[str]:
    """Return the next character that is not space, with the space before it."""
    read = ""
    while True:
        char = yield
        read += char
        if char == END or char not in SPACE:
            return read


def after_space() -> Scan[str]:
    """Return the next character that is not space."""
    return (yield from until_no_space()).lstrip(SPACE)


def json_string() -> Scan[str]:
    """Read the rest of a string after its opening quote; return its raw text with both quotes."""
    raw = ['"']
    yield from _rest_of_string(raw.append)
    return "".join(raw)


def json_value(first: str, emit: Emit) -> Scan[str | None]:
    """Read a value that begins with `first` and emit it as it arrives.

    Return the character after it if that was read: strings, arrays and objects have an explicit end, but a
    number ends where something else begins.
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
    """Read up to the closing quote and emit each character."""
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
    """Return the decoded text of a JSON string."""
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError as error:
        raise NotACall from error
