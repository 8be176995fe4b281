"""Cut a stream of text at stop strings."""

from collections import deque
from dataclasses import dataclass, field

from octavo.errors import RequestError


@dataclass
class _State:
    """A state represents the longest prefix of a stop string that the text so far ends with."""

    depth: int
    following: dict[str, "_State"] = field(default_factory=dict)
    fallback: "_State | None" = None  # the longest shorter prefix that this one ends with; None at the root
    match: str | None = None  # the longest stop string that this prefix ends with


class StopStringFilter:
    """Ends the text at the earliest end of a stop string; if several end there, the longest one counts.

    The result therefore does not depend on how the text was divided into pieces. Text is held back only while
    it may still become a stop string (an Aho-Corasick automaton: amortised constant time per character).
    """

    def __init__(self, stops: tuple[str, ...], *, include_stop: bool) -> None:
        if "" in stops:
            raise RequestError("A stop string must not be empty.", "stop")
        self._include_stop = include_stop
        self._root = _automaton(stops)
        self._state = self._root
        self._held = ""  # the last `self._state.depth` characters
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text; return the text that is now certain to be part of the result."""
        if self.matched is not None:
            return ""
        if not self._root.following:
            return text
        buffer = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            self._state = _advance(self._state, char)
            if self._state.match is not None:
                self.matched = self._state.match
                self._held = ""
                return buffer[: end if self._include_stop else end - len(self.matched)]
        boundary = len(buffer) - self._state.depth
        self._held = buffer[boundary:]
        return buffer[:boundary]

    def finish(self) -> str:
        """Return the text that was held back; no more text follows."""
        held, self._held = self._held, ""
        return held


def _advance(state: _State, char: str) -> _State:
    while char not in state.following and state.fallback is not None:
        state = state.fallback
    return state.following.get(char, state)


def _automaton(stops: tuple[str, ...]) -> _State:
    root = _State(depth=0)
    for stop in stops:
        state = root
        for char in stop:
            state = state.following.setdefault(char, _State(depth=state.depth + 1))
        state.match = stop
    queue = deque([root])
    while queue:  # breadth first: fallbacks are shallower, so they are complete
        state = queue.popleft()
        for char, child in state.following.items():
            child.fallback = root if state.fallback is None else _advance(state.fallback, char)
            child.match = child.match or child.fallback.match
            queue.append(child)
    return root
