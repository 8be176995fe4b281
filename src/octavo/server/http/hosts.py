"""The check of the `Host` header, against DNS rebinding.

A web page can point its own name at 127.0.0.1 after it was loaded. The browser then treats this server as the
page's origin and lets the page read every response, but it sends the page's name in the `Host` header. By
default only servers without a key that listen on a loopback address check it: a key keeps such pages out
too, and a server on a network has names that it cannot know.
"""

from dataclasses import dataclass
from typing import Self

from starlette.types import Scope

from octavo.config import ServerOptions
from octavo.server.http.errors import ApiError, invalid
from octavo.server.http.listener import is_loopback

ANY = "*"


@dataclass(frozen=True)
class Hosts:
    """Allowed host names."""

    names: frozenset[str] | None = None  # in addition to loopback names; None: every name

    @classmethod
    def from_options(cls, options: ServerOptions) -> Self:
        if options.allowed_hosts is not None:
            names = frozenset(bare_name(name) for name in options.allowed_hosts.split(","))
            return cls(None if ANY in names else names)
        has_key = options.api_key is not None or options.api_key_file is not None
        return cls() if has_key or not is_loopback(options.host) else cls(frozenset())

    def check(self, scope: Scope) -> None:
        """Raise an ApiError if the name is not allowed. No name is fine: browsers always send one."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(given) > 1:
            raise invalid("the request has more than one Host header")
        if self.names is None or not given:
            return
        name = bare_name(given[0])
        if name not in self.names and not is_loopback(name):
            raise ApiError(
                421,
                f"the Host header names {name[:100]!r}, which this server does not answer to: use localhost,"
                " or start the server with --allowed-hosts and the names it should answer to",
                code="host_not_allowed",
            )


def bare_name(host: str) -> str:
    """Return the host in lower case, without port and brackets."""
    host = host.strip().lower()
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal() and (name.endswith("]") or ":" not in name):
        host = name
    return host.removeprefix("[").removesuffix("]").removesuffix(".")
