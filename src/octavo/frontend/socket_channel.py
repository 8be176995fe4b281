"""A channel to an engine in another process, over a ZeroMQ socket."""

import asyncio
import time
from collections.abc import Callable
from typing import Self

import zmq
import zmq.asyncio

from octavo.link.versions import PROTOCOL_VERSION, departing, numbered_outputs
from octavo.link.wire import ToEngine, decode_from_engine, encode
from octavo.protocol import Abort, AskPrefixes, EngineOutputs, GenerateRequest, Hello, PrefixList, Ready
from octavo.view import EngineView


class SocketChannel:
    """Owned by the event loop: one task opens, reads and closes it; any task may send."""

    def __init__(self, socket: zmq.asyncio.Socket, ready: Ready) -> None:
        self._socket = socket
        self.facts = ready.facts
        self.stats = ready.stats  # at the time of opening
        self.version = ready.version  # of the engine's protocol
        self.heard_at = time.monotonic()  # when the last message arrived

    @classmethod
    async def open(cls, context: zmq.asyncio.Context, address: str, front_end: str) -> Self:
        """Connect to the engine at this address. Returns when it is ready for requests.

        `front_end` is the same for all connections of one front end: the latest ends the earlier ones.
        """
        socket = context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(address)
            socket.send(encode(Hello(front_end, PROTOCOL_VERSION)))
            ready = decode_from_engine(await socket.recv())
            assert isinstance(ready, Ready), "the first message of an engine is Ready"
        except BaseException:
            socket.close()
            raise
        return cls(socket, ready)

    def send(self, message: ToEngine) -> None:
        if isinstance(message, GenerateRequest | Abort):
            message = departing(message, self.version, time.monotonic())
        # The ZeroMQ queue has no limit, so sending never waits.
        self._socket.send(encode(message))

    def ask_prefixes(self) -> None:
        """Ask the engine for a list of its prefixes. An engine with version 1 has none to send."""
        if self.version >= 2:
            self.send(AskPrefixes())

    async def read(
        self,
        receive: Callable[[EngineOutputs], None],
        show: Callable[[EngineView], None],
        list_prefixes: Callable[[PrefixList], None],
    ) -> None:
        """Pass the engine's messages to these functions until this task is cancelled."""
        while True:
            message = decode_from_engine(await self._socket.recv())
            self.heard_at = time.monotonic()
            if isinstance(message, EngineOutputs):
                receive(numbered_outputs(message, self.version))
                await asyncio.sleep(0)  # let the readers of this step's text run before the next step
            elif isinstance(message, PrefixList):
                list_prefixes(message)
            elif isinstance(message, EngineView):
                show(message)

    def close(self) -> None:
        self._socket.close()
