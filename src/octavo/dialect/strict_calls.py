"""Read answers that conform to the grammars of `call_grammar`, with calls in the format of hermes.

The calls that are found are exactly those of the grammar: text that the grammar does not constrain is never
taken for a call, so each call conforms to the schema or grammar of its tool.
"""

import json
from collections.abc import Mapping

from octavo.dialect.families import FENCE_CLOSE, FENCE_OPEN, HERMES_CLOSE, HERMES_OPEN
from octavo.dialect.scan import (
    END,
    SPACE,
    NotACall,
    Scan,
    Sink,
    after_space,
    attempt,
    decoded,
    ignore,
    json_string,
    json_value,
    until,
)
from octavo.dialect.tools import Tools

TO_INPUT = "}\n"  # between the name of a text tool and its input


def strict_calls(sink: Sink, tools: Tools) -> Scan[None]:
    bare = {json.dumps(name): name for name in tools.parameters} if tools.may_be_bare else {}
    unread = yield from _bare_call(sink, tools, bare, "")
    while tag := (yield from until(HERMES_OPEN, FENCE_OPEN, emit=sink.content, read=unread)):
        if tag == FENCE_OPEN:
            unread = yield from _bare_call(sink, tools, bare, tag)
        else:
            yield from attempt(_tagged_call(sink, tools), sink, read=tag)
            unread = ""


def _tagged_call(sink: Sink, tools: Tools) -> Scan[None]:
    _, _, is_read = yield from _literals("{", '"name"', ":")
    if not is_read or (yield from after_space()) != '"':
        raise NotACall
    name = decoded((yield from json_string()))
    yield from _rest_of_call(sink, tools, name)
    yield from until(HERMES_CLOSE, emit=ignore)


def _bare_call(sink: Sink, tools: Tools, names: Mapping[str, str], fence: str) -> Scan[str]:
    """Read a call without a tag, at the beginning of the answer or in a fence. `names` are by their JSON.

    Return text that must be read again, because a tag may begin in it. If there is no call, the rest of what
    was read is content.
    """
    read, unread, is_read = yield from _literals("{", '"name"', ":", '"')
    read = fence + read
    if not is_read:
        sink.content(read)
        return unread
    literal, longest = '"', max(map(len, names), default=0)
    while literal not in names:
        char = yield
        literal += char
        may_begin_tag = char != END and char in "<`" and not any(name.startswith(literal) for name in names)
        if char == END or may_begin_tag or len(literal) > longest:
            sink.content(read + literal[1 : len(literal) - len(char)])
            return char
    yield from attempt(_rest_of_call(sink, tools, names[literal]), sink, read=read + literal[1:])
    return (yield from _end_of_fence(sink)) if fence else ""


def _rest_of_call(sink: Sink, tools: Tools, name: str) -> Scan[None]:
    """Read arguments or input."""
    if name in tools.text_tools:
        for expected in TO_INPUT:
            if (yield) != expected:
                raise NotACall
        sink.start_call(name)
        while (char := (yield)) != END:
            sink.arguments(char)
        return
    _, _, is_read = yield from _literals(",", '"arguments"', ":")
    first = (yield from after_space()) if is_read else END
    if first == END:
        raise NotACall
    sink.start_call(name)
    end = yield from json_value(first, sink.arguments)
    if end is None or (end != END and end in SPACE):
        end = yield from after_space()
    if end != "}":
        raise NotACall


def _end_of_fence(sink: Sink) -> Scan[str]:
    """Skip the end of a fence, if there is one. Return text that must be read again."""
    read, unread, is_read = yield from _literals(FENCE_CLOSE)
    if not is_read:
        sink.content(read)
        return unread
    char = yield
    return FENCE_CLOSE + char if char and char in "`j" else char  # another fence may begin in it


def _literals(*texts: str) -> Scan[tuple[str, str, bool]]:
    """Read texts, with space before each.

    Return what was read, the first character that differs, and whether there is none.
    """
    read: list[str] = []
    for text in texts:
        char = yield
        while char != END and char in SPACE:
            read.append(char)
            char = yield
        for position, expected in enumerate(text):
            if position:
                char = yield
            if char != expected:
                return "".join(read), char, False
            read.append(char)
    return "".join(read), END, True
