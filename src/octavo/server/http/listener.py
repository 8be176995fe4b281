"""The socket that the server listens on, and answers for those who ask before the application is imported.
So little is imported here."""

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
SEND_BUFFER = 128 << 10  # bytes that the kernel keeps for a client that reads slowly; it would take megabytes
OTHER_FILES = 256  # that we may need to have open beside connections, to start an engine for one
MAX_HEAD_BYTES = 64 << 10
PATIENCE = 2.0  # seconds for a client to say what it wants

LOADING = {
    "error": {
        "message": "the server is starting",
        "type": "service_unavailable_error",
        "param": None,
        "code": "loading",
    }
}


def allow_many_files() -> None:
    """A connection is an open file, and what a shell allows is often 1024 of them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems have a hard limit that cannot be reached
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def listen(options: ServerOptions) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # its connections have it too
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {options.host}, port {options.port}: {error.strerror or error};"
            " give another host or port"
        ) from error
    listener.setblocking(False)
    return listener


def most_connections() -> int:
    """So many that an engine can still be started: whoever comes then is turned away."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(allowed - OTHER_FILES, allowed // 2)


def is_loopback(host: str) -> bool:
    """Is it a name or an address of this machine for itself?"""
    if host == "localhost" or host.endswith(".localhost"):  # browsers never ask anybody for these
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class EarlyAnswers:
    """Listens beside the application's own socket, which is the same one: nobody is refused in between."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @classmethod
    async def start(cls, listener: socket.socket) -> Self:
        return cls(await asyncio.start_server(_answer, sock=listener.dup(), limit=MAX_HEAD_BYTES))

    def close(self) -> None:
        """Those who are being answered get their answer."""
        self._server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_response(head.split(b" ", 2)[1]))
            writer.write_eof()
            # To close on a client that is still sending would cut off what it was told.
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
