"""Send one request and read its reply, without a client library that would correct either."""

import http.client
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from octavo.errors import ConfigError


class Unreachable(Exception):
    """There was no reply, or it was not HTTP."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # relative to the base, which ends with /v1
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        """Return the decoded body, or None if it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


Transport = Callable[[Request], Reply]


@dataclass(frozen=True)
class HttpTransport:
    """Opens a new connection for every request, so that no check affects the next one."""

    scheme: str
    address: str  # host, or host:port
    base: str
    seconds: float

    @classmethod
    def to(cls, url: str, seconds: float) -> "HttpTransport":
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is not the address of a server; give one like http://127.0.0.1:8000")
        # If the API has another base than /v1, the URL contains the whole path.
        return cls(parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/") or "/v1", seconds)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}{self.base}"

    def __call__(self, request: Request) -> Reply:
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        deadline = time.monotonic() + self.seconds
        try:
            connection = kind(self.address, timeout=self.seconds)
            try:
                connection.request(
                    request.method, self.base + request.path, request.body or None, dict(request.headers)
                )
                answer = connection.getresponse()
                headers = {name.lower(): value for name, value in answer.getheaders()}
                return Reply(answer.status, headers, _read(answer, deadline))
            finally:
                connection.close()
        except TimeoutError as error:
            raise Unreachable(f"no reply within {self.seconds:g} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(f"no reply: {error or type(error).__name__}") from error


def _read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read in pieces up to the deadline: with regular pings, no single read would ever time out."""
    pieces = []
    while piece := answer.read1(1 << 16):
        pieces.append(piece)
        if time.monotonic() > deadline:
            raise TimeoutError
    body = b"".join(pieces)
    if answer.length:  # bytes are missing, which read1 does not report
        raise http.client.IncompleteRead(body, answer.length)
    return body
