"""The order of text and calls in an answer, for APIs whose answers are lists of parts.

A `StreamDelta` and a `Choice` have text and calls apart, and every call has an offset in the text. So the
order is that in which the model wrote them, and does not depend on how the answer was divided into deltas.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from octavo.dialect.pieces import CallArguments, CallStart
from octavo.frontend.output import Choice

OrderedPart = str | CallStart | CallArguments


class AnswerOrder:
    """Owned by the writer of one choice."""

    def __init__(self) -> None:
        self._num_text = 0  # characters returned so far
        self._waiting: deque[CallStart | CallArguments] = deque()  # for text that a stop string holds back

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def add(
        self, text: str, calls: Iterable[CallStart | CallArguments], *, is_last: bool
    ) -> Iterator[OrderedPart]:
        """Return parts in order. A call waits until the text before it is there or the choice has ended."""
        self._waiting.extend(calls)
        start = 0
        while self._waiting:
            head = self._waiting[0]
            if isinstance(head, CallStart):
                stop = start + max(head.offset - self._num_text, 0)
                if start < len(text) and stop > start:
                    yield self._counted(text[start:stop])
                    start = min(stop, len(text))
                if stop > start and not is_last:
                    return
            yield self._waiting.popleft()
        if start < len(text):
            yield self._counted(text[start:])

    def _counted(self, text: str) -> str:
        self._num_text += len(text)
        return text


def ordered(choice: Choice) -> Iterator[OrderedPart]:
    """Return the parts of a complete choice, in the order in which a stream has them."""
    calls: list[CallStart | CallArguments] = []
    for index, call in enumerate(choice.calls):
        calls += (
            CallStart(index, call.name, call.id, call.offset),
            CallArguments(index, call.arguments),
        )
    return AnswerOrder().add(choice.text, calls, is_last=True)
