"""What the scripted model generates, and what a caller must receive."""

import json
from dataclasses import dataclass, replace

from data.json_types import Json
from octavo.dialect.families import HERMES_CLOSE, HERMES_OPEN
from octavo.dialect.reasoning import CLOSE, OPEN

Called = tuple[str, str]  # the name of a function, and the text of its arguments


@dataclass(frozen=True)
class Script:
    """One choice."""

    raw: str  # as the model writes it
    text: str = ""
    reasoning: str | None = None
    calls: tuple[Called, ...] = ()
    finish_reason: str = "stop"


def says(text: str) -> Script:
    """An answer that is only text."""
    return Script(text, text)


def calls(*called: tuple[str, Json], before: str = "") -> Script:
    """An answer with calls of functions, optionally after some text."""
    written = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in called]
    raw = "\n".join([before] * bool(before) + [as_call(*one) for one in written])
    return Script(raw, before, calls=tuple(written))


def as_call(name: str, arguments: str) -> str:
    return f'{HERMES_OPEN}\n{{"name": "{name}", "arguments": {arguments}}}\n{HERMES_CLOSE}'


def thinks(reasoning: str, then: Script) -> Script:
    return replace(then, raw=f"{OPEN}\n{reasoning}\n{CLOSE}\n\n{then.raw}", reasoning=reasoning)
