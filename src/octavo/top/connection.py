"""The connection to a server's event stream. A thread reads it and reconnects whenever it is lost."""

import contextlib
import http.client
import queue
import socket
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, urlsplit

import msgspec

from octavo.errors import ConfigError, OctavoError
from octavo.view import Event

PATH = "/octavo/view"
SILENCE_SECONDS = 30.0  # the server sends something every 5 seconds
RETRY_SECONDS = 1.0
MAX_EVENT_BYTES = 64 << 20  # no Octavo server sends a longer one
MAX_ERROR_BYTES = 64 << 10

decode_event = msgspec.json.Decoder(Event).decode


class _ErrorDetails(msgspec.Struct):
    message: str
    param: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetails


class PermanentFailure(OctavoError):
    """A failure that a retry would not fix. The message says what to do."""


class ReplicaNotFound(PermanentFailure):
    """The server has no replica of the requested name."""


@dataclass(frozen=True)
class Unavailable:
    """There is no view at present, for this reason. The connection retries."""

    reason: str


Update = Event | Unavailable | PermanentFailure


@dataclass(frozen=True)
class ViewAddress:
    scheme: str
    host: str  # with the port
    base: str  # path before /octavo/view, as behind a proxy

    @classmethod
    def of(cls, url: str) -> Self:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is not a server address; give one such as http://127.0.0.1:8000")
        return cls(parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/").removesuffix("/v1"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}{self.base}"


class ViewConnection:
    """`updates` holds what was received: events, or why there are none. The thread ends with the process."""

    def __init__(
        self, address: ViewAddress, key: str | None, interval: float, replica: str | None = None
    ) -> None:
        self.address = address
        self.replica = replica  # whose engine is shown; None: the server chooses
        self._key = key
        self._interval = interval
        self._stopped = threading.Event()
        self._open: http.client.HTTPConnection | None = None
        self.updates: queue.SimpleQueue[Update] = queue.SimpleQueue()

    def showing(self, replica: str | None) -> "ViewConnection":
        """Return a connection to the same server that shows another engine. It is not started."""
        return ViewConnection(self.address, self._key, self._interval, replica)

    def start(self) -> None:
        threading.Thread(target=self._run, name="octavo-top", daemon=True).start()

    def stop(self) -> None:
        """Close the connection at once, so that it does not count as one of the server's watchers."""
        self._stopped.set()
        sock = None if self._open is None else self._open.sock  # the other thread may close it meanwhile
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # ends a `readline` of the other thread

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                for event in self.events():
                    self.updates.put(event)
                    if self._stopped.is_set():
                        return
                self.updates.put(Unavailable("the server closed the connection"))
            except PermanentFailure as error:
                self.updates.put(error)
                return
            except (OSError, ValueError, http.client.HTTPException, msgspec.MsgspecError) as error:
                # ValueError: `stop` has ended a TLS connection.
                self.updates.put(Unavailable(f"{explain_error(error, self.address)}; trying again"))
            self._stopped.wait(RETRY_SECONDS)

    def events(self) -> Generator[Event, None, None]:
        """Yield the events of one connection until it ends. Raise `PermanentFailure`, or the error of a lost
        connection."""
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        connection = self._open = kind(self.address.host, timeout=SILENCE_SECONDS)
        choice = "" if self.replica is None else f"&replica={quote(self.replica, safe='')}"
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        try:
            path = f"{self.address.base}{PATH}?interval={self._interval}{choice}"
            try:
                connection.request("GET", path, headers=headers)
            except ValueError as error:  # characters that a header or a host name cannot contain
                raise PermanentFailure(
                    f"cannot send a request to {self.address}: invalid address or API key ({error})"
                ) from error
            response = connection.getresponse()
            self._check(response)
            while line := response.readline(MAX_EVENT_BYTES):
                if line.startswith(b"data: "):
                    yield decode_event(line.removeprefix(b"data: "))
        finally:
            connection.close()

    def _check(self, response: http.client.HTTPResponse) -> None:
        if response.status == 403:
            reason = error_message(response) or "it does not allow this API key to watch"
            raise PermanentFailure(f"{self.address} answered: {reason}")
        if response.status == 401:
            problem = "needs an API key" if self._key is None else "does not accept this API key"
            raise PermanentFailure(f"{self.address} {problem}: set one with --api-key or OCTAVO_API_KEY")
        error = _error_of(response) if response.status == 404 and self.replica is not None else None
        if error is not None and error.param == "replica":
            raise ReplicaNotFound(f"{self.address} answered: {_on_one_line(error.message)}")
        if response.status in (429, 502, 503, 504):
            raise http.client.HTTPException(_busy(response.status))
        content_type = response.headers.get("content-type", "")
        if response.status != 200 or not content_type.startswith("text/event-stream"):
            raise PermanentFailure(
                f"{self.address} is not an Octavo server, or its version is too old: "
                f"{PATH} returned status {response.status}. To test other servers, use `octavo check`."
            )


def error_message(response: http.client.HTTPResponse) -> str | None:
    """Return the message of an error response, on one line; None if it has none."""
    error = _error_of(response)
    return None if error is None else _on_one_line(error.message) or None


def _error_of(response: http.client.HTTPResponse) -> _ErrorDetails | None:
    try:
        return msgspec.json.decode(response.read(MAX_ERROR_BYTES), type=_ErrorBody).error
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None


def _on_one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _busy(status: int) -> str:
    if status == 429:
        return "the server has reached its maximum number of watchers: close another one"
    return "the server is starting, or its proxy cannot reach it: wait until it is ready"


def explain_error(error: Exception, address: ViewAddress) -> str:
    """Return what went wrong and what to do next."""
    if isinstance(error, ConnectionRefusedError):
        return f"no server at {address}: start one with `octavo serve MODEL`"
    if isinstance(error, TimeoutError):
        return f"{address} does not respond: check the address"
    if isinstance(error, msgspec.MsgspecError):
        return f"cannot decode an event from {address} ({error}): use the same Octavo version as the server"
    if type(error) is http.client.HTTPException:
        return str(error)
    return f"no connection to {address} ({str(error) or type(error).__name__}): check the address"
