"""Parse a call in the form of a JSON object: {"name": "add", "arguments": {"a": 1}}"""

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
    """Read the rest of an object after its opening brace.

    The call starts when its name is known. Arguments are emitted as they arrive, or together with the name if
    they precede it. If no tag marks the object as a call (`tools` is given), it is a call only if it names a
    tool and has arguments, because other objects have names, too.
    """
    call = _Call(sink, tools)
    yield from _members(call)
    call.finish()


class _Call:
    """One call while it is being read."""

    def __init__(self, sink: Sink, tools: Tools | None) -> None:
        self._sink = sink
        self._tools = tools
        self._name: str | None = None
        self._early = ""  # arguments that preceded the name
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
        delimiter = yield from _value(call, key if key not in seen else "")
        seen.add(key)
        if delimiter is None or (delimiter != END and delimiter in SPACE):
            delimiter = yield from after_space()
        if delimiter == "}":
            return
        if delimiter != ",":
            raise NotACall


def _value(call: _Call, key: str) -> Scan[str | None]:
    """Read a value; return the character after it if that was read."""
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
