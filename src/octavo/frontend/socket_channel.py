"""A channel to an engine in another process, over a ZeroMQ socket."""

import asyncio
import time
from collections.abc import Callable
from typing import Self

import zmq

from octavo.link.versions import PROTOCOL_VERSION, departing, numbered_outputs
from octavo.link.wire import ToEngine, decode_from_engine, encode
from octavo.protocol import Abort, AskPrefixes, EngineOutputs, GenerateRequest, Hello, PrefixList, Ready
from octavo.view import EngineView


class SocketChannel:
    """Owned by the event loop: one task opens, reads and closes it; any task may send."""

    def __init__(self, reader: "SocketReader", ready: Ready) -> None:
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
        # The ZeroMQ queue has no limit, so sending never waits.
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:  # there is no connection, and so no queue
            self.has_lost_message = True
        self._reader.look()

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
            message = decode_from_engine(await self._reader.next())
            self.heard_at = time.monotonic()
            if isinstance(message, EngineOutputs):
                receive(numbered_outputs(message, self.version))
                await asyncio.sleep(0)  # let the readers of this step's text run before the next step
            elif isinstance(message, PrefixList):
                list_prefixes(message)
            elif isinstance(message, EngineView):
                show(message)

    def close(self) -> None:
        self._reader.close()


class SocketReader:
    """Waits for the messages of a ZeroMQ socket. Owned by the event loop.

    `zmq.asyncio` does the same with a future for each message, which takes longer than all else that the
    front end does for a message with a few tokens.

    The file descriptor of a ZeroMQ socket becomes readable when something happens, and reading, sending and
    looking at the events of the socket end that. So each of them is followed by a look at the events.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.socket = socket
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._changed.set)

    async def next(self) -> bytes:
        """Return the next message."""
        while True:
            try:
                return self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                self._changed.clear()
            if not self._has_message:
                await self._changed.wait()

    def look(self) -> None:
        """Note messages whose arrival the last `send` may have hidden."""
        if self._has_message:
            self._changed.set()

    @property
    def _has_message(self) -> bool:
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self.socket.close()
