"""The event of a streamed answer, around the choice in it."""

from collections.abc import Mapping
from typing import Any

from octavo.server.http.sse import encode


class ChunkFrame:
    """The part of an event that is the same in all of a response, encoded once.

    data: {"id": ..., "model": ..., "choices":[    CHOICE    ],"usage":null}
    `---------------- start ----------------´                `----- end ----´
    """

    def __init__(self, head: Mapping[str, Any], *, has_usage: bool) -> None:
        self._has_usage = has_usage
        self.start = b"data: " + encode(head)[:-1] + b',"choices":['
        self.end = b'],"usage":null}\n\n' if has_usage else b"]}\n\n"

    def chunk(self, choice: bytes, *, usage: Mapping[str, Any] | None = None, **more: Any) -> bytes:
        """`more` are further fields of the event, beside `choices`."""
        if usage is None and not more:
            return self.start + choice + self.end
        rest = ({"usage": usage} if self._has_usage or usage is not None else {}) | more
        return self.start + choice + b"]," + encode(rest)[1:] + b"\n\n"
