"""A call written as a JSON object: {"name": "add", "arguments": {"a": 1}}"""

from octavo.dialect.scan import (
    END,
    SPACE,
    NotACall,
    Scan,
    Sink,
    after_space,
    decoded,
    ignore,
    json_string,
    json_value,
)
from octavo.dialect.tools import Tools

NAME_KEYS = ("name",)
ARGUMENT_KEYS = ("arguments", "parameters")


def call_object(sink: Sink, tools: Tools | None = None) -> Scan[None]:
    """The rest of an object whose opening brace was read.

    The call starts when its name is known; arguments are handed on as they come, or, if they come before
    the name, with it. Without a tag that says so (`tools` are given), an object is a call only if it names
    one of them and has arguments: others have names, too.
    """
    call = _Call(sink, tools)
    yield from _members(call)
    call.finish()


class _Call:
    """One call while it is read."""

    def __init__(self, sink: Sink, tools: Tools | None) -> None:
        self._sink = sink
        self._tools = tools
        self._name: str | None = None
        self._early = ""  # arguments that came before the name
        self._has_arguments = False
        self._has_started = False

    def name(self, raw: str) -> None:
        name = decoded(raw)
        if not name or (self._tools is not None and name not in self._tools):
            raise NotACall
        self._name = self._name or name
        if self._tools is None or self._has_arguments:
            self._start()

    def arguments(self, text: str) -> None:
        self._has_arguments = True
        if self._name is not None:
            self._start()
        if self._has_started:
            self._sink.arguments(text)
        else:
            self._early += text

    def _start(self) -> None:
        if not self._has_started:
            assert self._name is not None
            self._has_started = True
            self._sink.start_call(self._name)
            self._sink.arguments(self._early)

    def finish(self) -> None:
        if not self._has_started:
            raise NotACall
        if not self._has_arguments:
            self._sink.arguments("{}")


def _members(call: _Call) -> Scan[None]:
    seen: set[str] = set()
    while True:
        char = yield from after_space()
        if char == "}" and not seen:
            return  # an empty object
        if char != '"':
            raise NotACall
        key = decoded((yield from json_string()))
        if (yield from after_space()) != ":":
            raise NotACall
        border = yield from _value(call, key if key not in seen else "")
        seen.add(key)
        if border is None or (border != END and border in SPACE):
            border = yield from after_space()
        if border == "}":
            return
        if border != ",":
            raise NotACall


def _value(call: _Call, key: str) -> Scan[str | None]:
    """Result: the character after the value, if it was read."""
    first = yield from after_space()
    if first == END or first in ",}]:":
        raise NotACall
    if key in NAME_KEYS:
        if first != '"':
            raise NotACall
        call.name((yield from json_string()))
        return None
    if key in ARGUMENT_KEYS and first == '"':
        # Some models write the arguments as a string of JSON.
        call.arguments(decoded((yield from json_string())))
        return None
    return (yield from json_value(first, call.arguments if key in ARGUMENT_KEYS else ignore))
