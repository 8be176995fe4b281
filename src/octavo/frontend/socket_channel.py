"""A channel to an engine in another process, over a ZeroMQ socket."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import zmq

from octavo.link.socket_reader import SocketReader
from octavo.link.versions import PROTOCOL_VERSION, departing, numbered_outputs
from octavo.link.wire import ToEngine, decode_from_engine, encode
from octavo.protocol import Abort, AskPrefixes, EngineOutputs, GenerateRequest, Hello, PrefixList, Ready
from octavo.view import EngineView


@dataclass(frozen=True)
class EngineRecipient:
    """Where the messages of an engine go."""

    receive: Callable[[EngineOutputs], None]
    show: Callable[[EngineView], None]
    list_prefixes: Callable[[PrefixList], None]


class SocketChannel:
    """Owned by the event loop: one task opens, reads and closes it; any task may send."""

    def __init__(self, reader: SocketReader, ready: Ready) -> None:
        self._reader = reader
        self._socket = reader.socket
        self.facts = ready.facts
        self.stats = ready.stats  # at the time of opening
        self.version = ready.version  # of the engine's protocol
        self.heard_at = time.monotonic()  # when the last message arrived
        self.has_lost_message = False  # the engine is dead, or the link must be connected again

    @classmethod
    async def open(cls, context: "zmq.Context[zmq.Socket[bytes]]", address: str, front_end: str) -> Self:
        """Connect to the engine at this address. Returns when it is ready for requests.

        `front_end` is the same for all connections of one front end: the latest ends the earlier ones.
        """
        socket = context.socket(zmq.DEALER)
        reader = SocketReader(socket)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(address)
            socket.send(encode(Hello(front_end, PROTOCOL_VERSION)))
            ready = decode_from_engine(await reader.next())
            assert isinstance(ready, Ready), "the first message of an engine is Ready"
        except BaseException:
            reader.close()
            raise
        return cls(reader, ready)

    def send(self, message: ToEngine) -> None:
        if isinstance(message, GenerateRequest | Abort):
            message = departing(message, self.version, time.monotonic())
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:  # there is no connection, or the queue to another machine is full
            self.has_lost_message = True
        self._reader.look()

    def ask_prefixes(self) -> None:
        """Ask the engine for a list of its prefixes. An engine with version 1 has none to send."""
        if self.version >= 2:
            self.send(AskPrefixes())

    async def read(self, recipient: EngineRecipient) -> None:
        """Pass the engine's messages on until this task is cancelled."""
        while True:
            await self.pass_on(await self._reader.next(), recipient)

    async def pass_on(self, encoded: bytes, recipient: EngineRecipient) -> None:
        """Pass one message of the engine on."""
        message = decode_from_engine(encoded)
        self.heard_at = time.monotonic()
        if isinstance(message, EngineOutputs):
            recipient.receive(numbered_outputs(message, self.version))
            await asyncio.sleep(0)  # let the readers of this step's text run before the next step
        elif isinstance(message, PrefixList):
            recipient.list_prefixes(message)
        elif isinstance(message, EngineView):
            recipient.show(message)

    def close(self) -> None:
        self._reader.close()
