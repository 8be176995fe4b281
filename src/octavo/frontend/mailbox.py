"""What becomes of the requests of an `LLM`, on its way to the threads and tasks that wait for it."""

from collections import deque

from octavo.errors import RequestError
from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import StreamDelta
from octavo.frontend.updates import Update, drained


class Mailbox:
    """Filled on the engine thread and emptied by whoever waits: a deque's append and popleft are atomic."""

    def __init__(self) -> None:
        self._waiting: deque[Update | Exception] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, update: Update | Exception) -> None:
        self._waiting.append(update)

    def take(self) -> list[Update]:
        """All that has come. If the text of a request could not be made, what went wrong is raised."""
        return drained(self._waiting)


class Names:
    """The callers' ids of requests under way, each with the engine's. Touched on the engine thread only."""

    def __init__(self) -> None:
        self._request_ids: dict[str, str] = {}

    def add(self, prepared: PreparedRequest) -> None:
        if prepared.name in self._request_ids:
            raise RequestError(f"request id {prepared.name!r} is already in use", "request_id")
        self._request_ids[prepared.name] = prepared.request_id

    def get(self, name: str) -> str | None:
        return self._request_ids.get(name)

    def free(self, prepared: PreparedRequest) -> None:
        """A name that was freed before may already belong to another request."""
        if self._request_ids.get(prepared.name) == prepared.request_id:
            del self._request_ids[prepared.name]


class Delivery:
    """Hands on what becomes of one request, and frees its name at the end. Used on the engine thread only."""

    is_full = False  # a caller in this process may read as late as it likes

    def __init__(self, prepared: PreparedRequest, names: Names, mailbox: Mailbox) -> None:
        self._prepared = prepared
        self._names = names
        self._mailbox = mailbox

    def put(self, update: Update | Exception) -> None:
        if not isinstance(update, StreamDelta):
            self._names.free(self._prepared)
        self._mailbox.put(update)
