"""TLS connections until their handshake is done: counted and bounded like any other."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from octavo.config import ServerOptions
from octavo.errors import ConfigError

logger = logging.getLogger(__name__)

MOST_HANDSHAKES = 256
HANDSHAKE_SECONDS = 10.0
RETRY_SECONDS = 0.1  # after the system could not give us a connection


def tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """None: plain HTTP. Raises ConfigError."""
    if options.tls_cert is None or options.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert and tls_key cannot be used: {error}; give PEM files") from error
    return context


class EncryptedDoor:
    """Accepts connections for a protocol that `make` makes, and that meets them when they are encrypted. Of
    too many handshakes the one that began first is ended: who means it is done in a moment.

    (A TLS server of asyncio tells nobody of a connection before its handshake is done.) Owned by the event
    loop; for uvicorn it is one of its servers.
    """

    def __init__(
        self, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext, most_handshakes: int
    ) -> None:
        self._make = make
        self._context = context
        self._most = most_handshakes
        self._handshakes: dict[asyncio.Task[None], None] = {}  # in the order they began
        self._accepting: asyncio.Task[None] | None = None

    def open(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))

    def close(self) -> None:
        """For new connections. Those that are encrypted are not ours any more."""
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
                logger.warning("a connection cannot be accepted: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            handshake = loop.create_task(self._shake_hands(connection))
            self._handshakes[handshake] = None
            handshake.add_done_callback(self._forget)
            if len(self._handshakes) > self._most:
                oldest = next(iter(self._handshakes))
                oldest.cancel()
                self._forget(oldest)

    def _forget(self, handshake: "asyncio.Task[None]") -> None:
        self._handshakes.pop(handshake, None)

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError:  # ssl.SSLError and a time-out are some
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise
