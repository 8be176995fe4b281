"""The socket that the server listens on. Imported before the application: needs little."""

import contextlib
import ipaddress
import resource
import socket

from octavo.config import ServerOptions
from octavo.errors import ConfigError

BACKLOG = 4096
SEND_BUFFER = 128 << 10  # bytes that the kernel keeps for a client that reads slowly; it would take megabytes
OTHER_FILES = 256  # that we may need to have open beside connections, to start an engine for one


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
