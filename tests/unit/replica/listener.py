"""A protected socket that echoes messages, peers of all kinds, and a proxy that records a session."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from octavo.link.agent_messages import Refusal
from octavo.link.fleet_key import FleetKey
from octavo.replica.gate import Gate
from patience import HANG_SECONDS


class SettableClock:
    """Stands still until a test changes it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Listener:
    """A socket behind a gate. The test's own thread runs both, in `until`."""

    def __init__(self, key_path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gate = Gate(self.context, key_path, clock=clock)
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.gate.protect(self.socket)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.received: list[bytes] = []
        self.names: list[str | None] = []  # of the keys that sent the messages

    def until(self, condition: Callable[[], bool]) -> None:
        """Serve until a condition holds."""
        end = time.monotonic() + HANG_SECONDS
        while not condition():
            assert time.monotonic() < end, f"refused {self.gate.refused}, received {len(self.received)}"
            self.serve()

    def serve(self) -> None:
        self.gate.poll()
        while self.socket.poll(5):
            sender, message = self.socket.recv_multipart(copy=False)
            self.received.append(message.bytes)
            self.names.append(self.gate.name_of(message))
            assert self.gate.name_of(sender) == self.names[-1]
            self.socket.send_multipart([sender.bytes, b"echo " + message.bytes])

    def until_refused(self, total: int, *reasons: Refusal) -> None:
        """Serve until this many connections were refused for these reasons."""
        self.until(lambda: sum(self.gate.refused[reason] for reason in reasons) >= total)

    def close(self) -> None:
        self.gate.close()
        self.socket.close()
        self.context.term()


class Peer:
    """A ZeroMQ client. Without a key, it uses no CURVE."""

    def __init__(self, port: int, key: FleetKey | None, server: bytes = b"") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if key is not None:
            key.protect_connection(self._socket, server)
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def send(self, message: bytes) -> None:
        with contextlib.suppress(zmq.Again):  # libzmq has given up after a refused connection
            self._socket.send(message, zmq.NOBLOCK)

    def answer(self) -> bytes | None:
        with contextlib.suppress(zmq.Again):
            return self._socket.recv(zmq.NOBLOCK)
        return None

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class RecordingProxy:
    """Forwards one connection and records the bytes that the client sends."""

    def __init__(self, port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._target = port
        self._recorded: list[bytes] = []
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def recorded(self) -> bytes:
        """Return all bytes. Call this after the client is closed."""
        self._thread.join(HANG_SECONDS)
        assert not self._thread.is_alive()
        return b"".join(self._recorded)

    def _forward(self) -> None:
        client, _ = self._listening.accept()
        self._listening.close()
        server = socket.create_connection(("127.0.0.1", self._target))
        back = threading.Thread(target=self._copy, args=(server, client, None), daemon=True)
        back.start()
        self._copy(client, server, self._recorded)
        server.shutdown(socket.SHUT_RDWR)
        back.join()
        client.close()
        server.close()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, record: list[bytes] | None) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                if record is not None:
                    record.append(content)
                target.sendall(content)
