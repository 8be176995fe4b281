"""Wait for the messages of a ZeroMQ socket on an event loop."""

import asyncio

import zmq

from octavo.errors import OctavoError


class LinkLost(OctavoError):
    """There is no connection any more."""


class SocketReader:
    """Waits for the messages of a ZeroMQ socket. Owned by the event loop.

    `zmq.asyncio` does the same with a future for each message, which takes longer than all else that the
    front end does for a message with a few tokens.

    The file descriptor of a ZeroMQ socket becomes readable when something happens, and reading, sending and
    looking at the events of the socket end that. So each of them is followed by a look at the events.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.socket = socket
        self._has_one_peer = socket.type == zmq.DEALER
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._changed.set)

    async def next(self) -> bytes:
        """Return the next message, which has one frame."""
        while True:
            try:
                return self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                self._changed.clear()
            if not self._has_message:
                await self._changed.wait()

    async def wait_until_connected(self) -> None:
        """Return when a socket with the option IMMEDIATE has a connection."""
        while not int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            self._changed.clear()
            await self._changed.wait()

    async def next_frames(self) -> list[zmq.Frame]:
        """Return the frames of the next message.

        Raises LinkLost if the socket has one connection, and that has ended, or too many messages wait
        for its peer.
        """
        while True:
            try:
                return self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._changed.clear()
            events = int(self.socket.getsockopt(zmq.EVENTS))
            if events & zmq.POLLIN:
                continue
            if self._has_one_peer and not events & zmq.POLLOUT:
                raise LinkLost("the connection was closed")
            await self._changed.wait()

    def look(self) -> None:
        """Note what the last `send` may have hidden: the arrival of a message, the end of the connection."""
        events = int(self.socket.getsockopt(zmq.EVENTS))
        if events & zmq.POLLIN or (self._has_one_peer and not events & zmq.POLLOUT):
            self._changed.set()

    @property
    def _has_message(self) -> bool:
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self.socket.close()
