"""A connection to a server's view, made again whenever it is lost. It waits in a thread of its own."""

import http.client
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

import msgspec

from octavo.errors import ConfigError, OctavoError
from octavo.view import Event

PATH = "/octavo/view"
SILENCE_SECONDS = 30.0  # the server says something every five
RETRY_SECONDS = 1.0
LONGEST_EVENT = 64 << 20  # bytes; what is longer comes from no server of ours

decode_event = msgspec.json.Decoder(Event).decode


class Refused(OctavoError):
    """To try again would not help. The message says what to do."""


@dataclass(frozen=True)
class Away:
    """There is no view just now, and why. It is tried again."""

    reason: str


News = Event | Away | Refused


@dataclass(frozen=True)
class Address:
    scheme: str
    host: str  # with the port
    base: str  # before /octavo/view, behind a proxy

    @classmethod
    def of(cls, url: str) -> Self:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is not the address of a server; give one like http://127.0.0.1:8000")
        return cls(parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/").removesuffix("/v1"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}{self.base}"


class Connection:
    """`news` is what has come: events, and why there are none. The thread ends with the process."""

    def __init__(self, address: Address, key: str | None, interval: float) -> None:
        self.address = address
        self._key = key
        self._interval = interval
        self._stopped = threading.Event()
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._run, name="octavo-top", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                for event in self.events():
                    self.news.put(event)
                    if self._stopped.is_set():
                        return
                self.news.put(Away("the server has ended the connection"))
            except Refused as error:
                self.news.put(error)
                return
            except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
                self.news.put(Away(f"{in_words(error, self.address)}; trying again"))
            self._stopped.wait(RETRY_SECONDS)

    def events(self, count: int | None = None) -> Iterator[Event]:
        """Of one connection, until it ends. Raises Refused, or what a lost connection raises."""
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.address.host, timeout=SILENCE_SECONDS)
        limit = "" if count is None else f"&count={count}"
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        try:
            path = f"{self.address.base}{PATH}?interval={self._interval}{limit}"
            try:
                connection.request("GET", path, headers=headers)
            except ValueError as error:  # letters that cannot be in a header or in a name
                raise Refused(
                    f"{self.address} cannot be asked: the address or the key is wrong ({error})"
                ) from error
            answer = connection.getresponse()
            self._check(answer)
            while line := answer.readline(LONGEST_EVENT):
                if line.startswith(b"data: "):
                    yield decode_event(line.removeprefix(b"data: "))
        finally:
            connection.close()

    def _check(self, answer: http.client.HTTPResponse) -> None:
        if answer.status in (401, 403):
            said = "needs a key" if self._key is None else "does not know this key"
            raise Refused(f"{self.address} {said}: give one with --api-key, or in OCTAVO_API_KEY")
        if answer.status in (429, 502, 503, 504):
            raise http.client.HTTPException(_busy(answer.status))
        content_type = answer.headers.get("content-type", "")
        if answer.status != 200 or not content_type.startswith("text/event-stream"):
            raise Refused(
                f"what answers at {self.address} is no Octavo server, or too old a one: "
                f"{PATH} gave status {answer.status}. Other servers can be asked with `octavo check`."
            )


def _busy(status: int) -> str:
    if status == 429:
        return "the server has as many watchers as it takes: end another one"
    return "the server is starting, or none stands behind its proxy: wait until it is ready"


def in_words(error: Exception, address: Address) -> str:
    """What is wrong and what to do about it."""
    if isinstance(error, ConnectionRefusedError):
        return f"nothing answers at {address}: start a server there with `octavo serve MODEL`"
    if isinstance(error, TimeoutError):
        return f"{address} says nothing: check the address"
    if isinstance(error, msgspec.MsgspecError):
        return f"{address} sends what this version does not understand ({error}): use the server's version"
    if type(error) is http.client.HTTPException:
        return str(error)
    return f"no connection to {address} ({str(error) or type(error).__name__}): check the address"
