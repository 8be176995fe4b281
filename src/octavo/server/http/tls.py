"""Accept TLS connections, with a limit on unfinished handshakes."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from octavo.config import ServerOptions
from octavo.errors import ConfigError

logger = logging.getLogger(__name__)

MAX_HANDSHAKES = 256
HANDSHAKE_SECONDS = 10.0
RETRY_SECONDS = 0.1  # after a failed accept


def tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """Return the TLS context, or None for plain HTTP. Raises ConfigError."""
    if options.tls_cert is None or options.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot load tls_cert and tls_key: {error}; give PEM files") from error
    return context


class TlsListener:
    """Accepts connections, and creates a protocol with `make` after each handshake.

    With too many handshakes, the oldest is cancelled: an honest client finishes within milliseconds.
    (asyncio's own TLS server does not expose a connection before its handshake is done, so handshakes could
    not be limited.) Owned by the event loop; uvicorn uses it like one of its servers.
    """

    def __init__(
        self, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext, max_handshakes: int
    ) -> None:
        self._make = make
        self._context = context
        self._limit = max_handshakes
        self._handshakes: dict[asyncio.Task[None], None] = {}  # oldest first
        self._accepting: asyncio.Task[None] | None = None

    def open(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))

    def close(self) -> None:
        """Stop accepting and cancel handshakes. Established connections belong to their protocols."""
        if self._accepting is not None:
            self._accepting.cancel()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        if self._accepting is not None:
            await asyncio.wait([self._accepting, *self._handshakes])

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            handshake = loop.create_task(self._handshake(connection))
            self._handshakes[handshake] = None
            handshake.add_done_callback(self._forget)
            if len(self._handshakes) > self._limit:
                oldest = next(iter(self._handshakes))
                oldest.cancel()
                self._forget(oldest)

    def _forget(self, handshake: "asyncio.Task[None]") -> None:
        self._handshakes.pop(handshake, None)

    async def _handshake(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError:  # includes ssl.SSLError and timeouts
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise
