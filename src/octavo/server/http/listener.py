"""The listening socket, and responses until the application is imported. So this module imports little."""

import asyncio
import contextlib
import ipaddress
import json
import resource
import socket
from typing import Self

from octavo.config import ServerOptions
from octavo.errors import ConfigError

BACKLOG = 4096
SEND_BUFFER = 128 << 10  # bytes per connection in the kernel for slow readers; the default is megabytes
OTHER_FILES = 256  # open files apart from connections, such as those to start an engine
MAX_HEAD_BYTES = 64 << 10
TIMEOUT = 2.0  # seconds for a client to send its request

LOADING = {
    "error": {
        "message": "the server is starting",
        "type": "service_unavailable_error",
        "param": None,
        "code": "loading",
    }
}


def raise_open_file_limit() -> None:
    """Raise the soft limit to the hard one: every connection is a file, and shells often allow only 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # on some systems the hard limit cannot be set
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def listen(options: ServerOptions) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # inherited by its connections
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {options.host}, port {options.port}: {error.strerror or error};"
            " choose another host or port"
        ) from error
    listener.setblocking(False)
    return listener


def max_connections() -> int:
    """Return the maximum number of connections that leaves enough files to start an engine."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(allowed - OTHER_FILES, allowed // 2)


def is_loopback(host: str) -> bool:
    """Return whether a name or address is a loopback one."""
    if host == "localhost" or host.endswith(".localhost"):  # browsers resolve these without DNS
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class EarlyAnswers:
    """Answers on a duplicate of the application's socket, so that no connection fails at the handover."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @classmethod
    async def start(cls, listener: socket.socket) -> Self:
        return cls(await asyncio.start_server(_answer, sock=listener.dup(), limit=MAX_HEAD_BYTES))

    def close(self) -> None:
        """Accept no more connections. Responses in progress are completed."""
        self._server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(TIMEOUT):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_response(head.split(b" ", 2)[1]))
            writer.write_eof()
            # Closing while the client still sends would make it lose the response.
            while await reader.read(MAX_HEAD_BYTES):
                pass
    writer.close()


def _response(path: bytes) -> bytes:
    status, content = "503 Service Unavailable", LOADING
    if path == b"/livez":
        status, content = "200 OK", {"status": "live"}  # type: ignore[dict-item]
    elif path in (b"/readyz", b"/healthz", b"/health"):
        content = {"status": "starting", "phase": "importing"}  # type: ignore[dict-item]
    body = json.dumps(content).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "retry-after: 1\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
