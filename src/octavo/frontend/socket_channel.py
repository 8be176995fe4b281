"""A channel to an engine in another process, over a ZeroMQ socket."""

import asyncio
from collections.abc import Callable
from typing import Self

import zmq
import zmq.asyncio

from octavo.link.wire import ToEngine, decode_from_engine, encode
from octavo.protocol import EngineOutputs, Hello, Ready
from octavo.view import EngineView


class SocketChannel:
    """Owned by the event loop: one task opens it, reads it and closes it; any may send."""

    def __init__(self, socket: zmq.asyncio.Socket, ready: Ready) -> None:
        self._socket = socket
        self.facts = ready.facts
        self.stats = ready.stats  # when it was opened

    @classmethod
    async def open(cls, context: zmq.asyncio.Context, address: str) -> Self:
        """Returns when the engine at this address can take requests."""
        socket = context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(address)
            socket.send(encode(Hello()))
            ready = decode_from_engine(await socket.recv())
            assert isinstance(ready, Ready), "an engine says nothing before it is ready"
        except BaseException:
            socket.close()
            raise
        return cls(socket, ready)

    def send(self, message: ToEngine) -> None:
        # Without a limit on its queue, ZeroMQ takes a message at once: there is nothing to wait for.
        self._socket.send(encode(message))

    async def read(
        self, receive: Callable[[EngineOutputs], None], show: Callable[[EngineView], None]
    ) -> None:
        """Hand on what the engine sends, one message at a time, until this is cancelled."""
        while True:
            message = decode_from_engine(await self._socket.recv())
            if isinstance(message, EngineOutputs):
                receive(message)
                await asyncio.sleep(0)  # those who wait for this step's text go before the next step's
            elif isinstance(message, EngineView):
                show(message)

    def close(self) -> None:
        self._socket.close()
