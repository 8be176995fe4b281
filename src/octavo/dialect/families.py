"""How each family of models writes calls in its answers. A family is a scan of a complete answer."""

from collections.abc import Callable

from octavo.dialect.call_object import call_object
from octavo.dialect.pythonic import call_list, calls_in
from octavo.dialect.scan import (
    END,
    SPACE,
    NotACall,
    Scan,
    Sink,
    after_space,
    all_content,
    attempt,
    ignore,
    json_value,
    until,
    until_no_space,
)
from octavo.dialect.tools import Tools

Family = Callable[[Sink, Tools], Scan[None]]

# -- Qwen, Hermes: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>, surrounded by text -----

HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"
FENCE_OPEN, FENCE_CLOSE = "```json", "```"


def hermes(sink: Sink, tools: Tools) -> Scan[None]:
    """Read tagged calls, and also untagged JSON, at the beginning of the answer or in a code fence.

    Models that were trained more on code than on calls write such JSON. It is a call only if it names a tool.
    """
    read = yield from until_no_space()
    if read.endswith("{"):
        yield from attempt(call_object(sink, tools), sink, read=read)
        read = ""
    while tag := (yield from until(HERMES_OPEN, FENCE_OPEN, emit=sink.content, read=read)):
        calls = _hermes_calls(sink) if tag == HERMES_OPEN else _fenced_call(sink, tools)
        yield from attempt(calls, sink, read=tag)
        read = ""


def _fenced_call(sink: Sink, tools: Tools) -> Scan[None]:
    if (yield from after_space()) != "{":
        raise NotACall
    yield from call_object(sink, tools)
    yield from until(FENCE_CLOSE, emit=ignore)


def _hermes_calls(sink: Sink) -> Scan[None]:
    """Read the calls between two tags. There should be one, but some models write several."""
    if (yield from after_space()) != "{":
        raise NotACall
    while True:
        yield from call_object(sink)
        char = yield from after_space()
        if char != "{":
            yield from until(HERMES_CLOSE, emit=ignore, read=char)
            return


# -- Llama 3: {"name": "add", "parameters": {"a": 1}}, or [add(a=1)], and nothing else ---------------------

PYTHON_TAG = "<|python_tag|>"


def llama(sink: Sink, tools: Tools) -> Scan[None]:
    """An answer that begins with JSON or a list is a call only if it names a tool."""
    while (yield from attempt(_llama_call(sink, tools), sink)):
        pass
    yield from all_content(sink)


def _llama_call(sink: Sink, tools: Tools) -> Scan[None]:
    char = yield from after_space()
    if sink.num_calls and char and char in ";,":
        char = yield from after_space()
    if char == PYTHON_TAG[0]:
        for expected in PYTHON_TAG[1:]:
            if (yield) != expected:
                raise NotACall
        char = yield from after_space()
    if char == "{":
        yield from call_object(sink, tools)
    elif char == "[":
        yield from call_list(sink, tools)
    else:
        raise NotACall


# -- Mistral: [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}], or [TOOL_CALLS]add[ARGS]{"a": 1} -------

MISTRAL_OPEN = "[TOOL_CALLS]"
MISTRAL_ARGUMENTS = "ARGS"


def mistral(sink: Sink, tools: Tools) -> Scan[None]:
    while (yield from until(MISTRAL_OPEN, emit=sink.content)):
        yield from attempt(_mistral_calls(sink), sink, read=MISTRAL_OPEN)


def _mistral_calls(sink: Sink) -> Scan[None]:
    char = yield from after_space()
    if char != "[":
        yield from _mistral_named(sink, char)
        return
    if (yield from after_space()) != "{":
        raise NotACall
    yield from call_object(sink)
    while (char := (yield from after_space())) in (",", "{"):
        if char == "{":
            yield from call_object(sink)


def _mistral_named(sink: Sink, first: str) -> Scan[None]:
    name = first
    while (char := (yield)) not in ("[", "{", END):
        name += char
    while char == "[":  # [CALL_ID] and an id may come before [ARGS]
        marker = ""
        while (char := (yield)) not in ("]", END):
            marker += char
        if marker == MISTRAL_ARGUMENTS:
            char = yield from after_space()
            break
        while (char := (yield)) not in ("[", END):
            pass
    if char != "{" or not name.strip():
        raise NotACall
    sink.start_call(name.strip())
    yield from json_value(char, sink.arguments)


# -- Gemma: Python between ```tool_code and ``` -----------------------------------------------------------

GEMMA_OPEN, GEMMA_CLOSE = "```tool_code", "```"


def gemma(sink: Sink, tools: Tools) -> Scan[None]:
    while (yield from until(GEMMA_OPEN, emit=sink.content)):
        yield from attempt(_gemma_calls(sink, tools), sink, read=GEMMA_OPEN)


def _gemma_calls(sink: Sink, tools: Tools) -> Scan[None]:
    code: list[str] = []
    if (yield) not in SPACE:
        raise NotACall
    yield from until(GEMMA_CLOSE, emit=code.append)
    sink.calls(calls_in("".join(code), tools))


def no_calls(sink: Sink, tools: Tools) -> Scan[None]:
    yield from all_content(sink)
