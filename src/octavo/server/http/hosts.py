"""Which names the server answers to.

A web page may let its own name point at 127.0.0.1 once it has been loaded: the browser then takes this server
for the page's own, and lets it read every answer. But it also sends that name, in the header `Host`. A key
keeps such pages out too, and who listens to a whole network has names that we cannot know.
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
    """`names` is None: whatever the client calls us."""

    names: frozenset[str] | None = None  # beside those of this machine

    @classmethod
    def from_options(cls, options: ServerOptions) -> Self:
        if options.allowed_hosts is not None:
            names = frozenset(bare_name(name) for name in options.allowed_hosts.split(","))
            return cls(None if ANY in names else names)
        has_key = options.api_key is not None or options.api_key_file is not None
        return cls() if has_key or not is_loopback(options.host) else cls(frozenset())

    def check(self, scope: Scope) -> None:
        """Refuse a request that means somebody else. Only old or simple clients, no browsers, name nobody."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(given) > 1:
            raise invalid("the request has more than one Host header")
        if self.names is None or not given:
            return
        name = bare_name(given[0])
        if name not in self.names and not is_loopback(name):
            raise ApiError(
                421,
                f"this server does not answer to the name {name[:100]!r}: ask for localhost, or start the"
                " server with --allowed-hosts and the names it should have",
                code="host_not_allowed",
            )


def bare_name(host: str) -> str:
    """Without port, brackets and case."""
    host = host.strip().lower()
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal() and (name.endswith("]") or ":" not in name):
        host = name
    return host.removeprefix("[").removesuffix("]").removesuffix(".")
