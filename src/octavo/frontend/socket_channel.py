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
    """Owned by the event loop: one task opens, reads and closes it; any task may send."""

    def __init__(self, socket: zmq.asyncio.Socket, ready: Ready) -> None:
        self._socket = socket
        self.facts = ready.facts
        self.stats = ready.stats  # at the time of opening

    @classmethod
    async def open(cls, context: zmq.asyncio.Context, address: str) -> Self:
        """Connect to the engine at this address. Returns when it is ready for requests."""
        socket = context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(address)
            socket.send(encode(Hello()))
            ready = decode_from_engine(await socket.recv())
            assert isinstance(ready, Ready), "the first message of an engine is Ready"
        except BaseException:
            socket.close()
            raise
        return cls(socket, ready)

    def send(self, message: ToEngine) -> None:
        # The ZeroMQ queue has no limit, so sending never waits.
        self._socket.send(encode(message))

    async def read(
        self, receive: Callable[[EngineOutputs], None], show: Callable[[EngineView], None]
    ) -> None:
        """Pass the engine's messages to `receive` and `show` until this task is cancelled."""
        while True:
            message = decode_from_engine(await self._socket.recv())
            if isinstance(message, EngineOutputs):
                receive(message)
                await asyncio.sleep(0)  # let the readers of this step's text run before the next step
            elif isinstance(message, EngineView):
                show(message)

    def close(self) -> None:
        self._socket.close()
