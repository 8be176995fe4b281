"""Mailboxes that carry updates of the requests of an `LLM` to the threads and tasks that wait for them."""

from collections import deque

from octavo.errors import RequestError
from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import StreamDelta
from octavo.frontend.updates import Update, drain


class Mailbox:
    """Filled on the engine thread, emptied by the waiting caller. A deque's append and popleft are atomic."""

    def __init__(self) -> None:
        self._waiting: deque[Update | Exception] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, update: Update | Exception) -> None:
        self._waiting.append(update)

    def take(self) -> list[Update]:
        """Return all updates received. Raises the exception of a request whose text could not be produced."""
        return drain(self._waiting)


class Names:
    """Maps the callers' ids of in-flight requests to the engine's. Used on the engine thread only."""

    def __init__(self) -> None:
        self._request_ids: dict[str, str] = {}

    def add(self, prepared: PreparedRequest) -> None:
        if prepared.name in self._request_ids:
            raise RequestError(f"request id {prepared.name!r} is already in use", "request_id")
        self._request_ids[prepared.name] = prepared.request_id

    def get(self, name: str) -> str | None:
        return self._request_ids.get(name)

    def free(self, prepared: PreparedRequest) -> None:
        """Free the name of a request, unless it was freed before and now belongs to another request."""
        if self._request_ids.get(prepared.name) == prepared.request_id:
            del self._request_ids[prepared.name]


class Delivery:
    """Passes on the updates of one request, and frees its name at the end. Used on the engine thread only."""

    is_full = False  # callers in this process may read at any time

    def __init__(self, prepared: PreparedRequest, names: Names, mailbox: Mailbox) -> None:
        self._prepared = prepared
        self._names = names
        self._mailbox = mailbox

    def put(self, update: Update | Exception) -> None:
        if not isinstance(update, StreamDelta):
            self._names.free(self._prepared)
        self._mailbox.put(update)
