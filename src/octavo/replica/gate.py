"""Which peers may connect to the listening socket of a replica, and how many were refused.

libzmq performs the handshakes. It asks pyzmq's authenticator about the key of each peer that has proved to
have one, and a monitor reports what happened. What the monitor of libzmq 4.3.5 shows, by experiment:

no CURVE, wrong server key, replayed bytes      accepted, handshake failed (protocol), disconnected
key not on the list                             accepted, handshake failed (auth), disconnected
closed or silent during the handshake           accepted, handshake failed (no detail), disconnected
not ZeroMQ at all                               accepted, disconnected
allowed, and then a message above the maximum   accepted, handshake succeeded, disconnected

A client of libzmq without CURVE notices the mistake itself. If it disconnects first, it counts as unfinished.
"""

import logging
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from octavo.errors import ConfigError
from octavo.link.agent_messages import Refusal
from octavo.link.fleet_key import ZAP_DOMAIN, FleetKey

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 16 << 20  # of each frame, with the 33 bytes that CURVE adds
HANDSHAKE_SECONDS = 5.0
CHECK_SECONDS = 1.0  # between two looks at the key file
WARNING_SECONDS = 1.0  # at least, between two warnings about refused connections
MAX_EVENTS = 10_000  # per poll

# Not ACCEPT_FAILED: when the process has no file descriptor left, libzmq sends it in a busy loop.
MONITORED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
EVENT = struct.Struct("=Hi")  # the event and its value, which is a file descriptor or a reason

FileVersion = tuple[int, int, int, int]  # modification time, time of the last chmod or rename, size, inode


FAILURES: Mapping[int, Refusal] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Refusal.UNKNOWN_KEY,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Refusal.HANDSHAKE,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Refusal.UNFINISHED,
}


class AllowList:
    """Asked by the authenticator's thread, changed by the gate."""

    def __init__(self, allowed: Mapping[bytes, str]) -> None:
        self._allowed = allowed
        self.last_unknown = b""  # public key

    def replace(self, allowed: Mapping[bytes, str]) -> None:
        self._allowed = allowed  # one assignment, so the other thread sees either list

    def name_of(self, public: bytes) -> str | None:
        return self._allowed.get(public)

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a peer with this key, in Z85, may connect. pyzmq prescribes the name."""
        public = z85.decode(key)
        is_allowed = public in self._allowed
        if not is_allowed:
            self.last_unknown = public
        return is_allowed


class ConnectionTally:
    """Counts refused connections from the events of a monitor.

    Only ACCEPTED and DISCONNECTED say which connection they are about (its file descriptor). So connections
    that ended without any event about their handshake are counted as a difference: accepted, minus those with
    such an event, minus those whose handshake may still run. As long as handshakes run, the count may be too
    low, for up to 10 seconds after the last one.

    Not counted: messages above the maximum size. libzmq closes the connection, and the events are the same as
    those of a peer that disconnects. A peer whose encrypted messages are damaged on the way counts as an
    invalid handshake although its handshake had succeeded, and may hide one connection that is not ZeroMQ.
    """

    def __init__(self) -> None:
        self._num_accepted = 0
        self._num_succeeded = 0
        self._failed: Counter[Refusal] = Counter()
        self._num_invalid = 0
        self._undecided: dict[int, float] = {}  # when connections were accepted whose handshake may still run

    def add(self, event: int, value: int, now: float) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._num_accepted += 1
            self._undecided.pop(value, None)
            self._undecided[value] = now
        elif event == zmq.EVENT_DISCONNECTED:
            self._undecided.pop(value, None)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._num_succeeded += 1
            if len(self._undecided) == 1:
                self._undecided.clear()
        elif event in FAILURES:
            self._failed[FAILURES[event]] += 1

    def settle(self, now: float) -> None:
        """Count the connections that have ended without an event about their handshake."""
        # libzmq ends handshakes after HANDSHAKE_SECONDS. Twice that, since its thread may be late.
        for descriptor, accepted_at in list(self._undecided.items()):
            if now - accepted_at <= 2 * HANDSHAKE_SECONDS:
                break  # they are in the order in which they were accepted
            del self._undecided[descriptor]
        decided = self._num_succeeded + self._failed.total()
        silent = self._num_accepted - decided - len(self._undecided)
        # Counts never decrease, even if a handshake took longer than expected and then ended with an event.
        self._num_invalid = max(self._num_invalid, self._failed[Refusal.HANDSHAKE] + max(0, silent))

    @property
    def refused(self) -> Counter[Refusal]:
        return Counter({**self._failed, Refusal.HANDSHAKE: self._num_invalid})


class Gate:
    """Protects one listening socket. Owned by the thread that owns the socket.

    A context may have one gate, since it has one authenticator. When the gate is closed, the socket refuses
    all new connections.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        key_path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError if the key file is missing or invalid."""
        self._context = context
        self._path = key_path
        self._clock = clock
        self._version = self._file_version()
        self._checked_at = clock()
        self._key = FleetKey.read(key_path)
        self._allow_list = AllowList(self._key.allowed)
        self._tally = ConnectionTally()
        self._reported: Counter[Refusal] = Counter()
        self._reported_at: float | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._authenticator: Any = ThreadAuthenticator(context)  # its methods have no types
        self._authenticator.configure_curve_callback(ZAP_DOMAIN, self._allow_list)
        self._authenticator.start()

    def protect(self, socket: "zmq.Socket[bytes]") -> None:
        """Set the options of the socket and begin to count. Call this once, before `bind`."""
        assert self._socket is None, "a gate protects one socket"
        self._key.protect_listener(socket)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(1000 * HANDSHAKE_SECONDS))
        address = f"inproc://octavo-gate-{id(self)}"
        socket.monitor(address, MONITORED)
        monitor = self._context.socket(zmq.PAIR, socket_class=zmq.Socket)
        # With a limit, as in `Socket.get_monitor_socket`, libzmq's thread stops for all connections when the
        # queue of events is full, and closing the socket then hangs.
        monitor.setsockopt(zmq.RCVHWM, 0)
        monitor.setsockopt(zmq.LINGER, 0)
        monitor.connect(address)
        self._socket, self._monitor = socket, monitor

    @property
    def refused(self) -> Mapping[Refusal, int]:
        """Connections that were refused until the last `poll`. Peers that try again are counted again."""
        counted = self._tally.refused
        return {reason: counted[reason] for reason in Refusal}

    def name_of(self, frame: zmq.Frame) -> str | None:
        """Return the name of the key whose owner sent a frame; None if the key is no longer allowed.

        libzmq does not end connections whose key has been removed from the list, so a frame from there must
        be dropped. Receive with `copy=False` to get a frame.
        """
        try:
            user_id = str(frame.get("User-Id"))  # set by the authenticator: the public key in Z85
        except zmq.ZMQError:  # the frame did not come from a protected socket
            return None
        return self._allow_list.name_of(z85.decode(user_id))

    def poll(self) -> None:
        """Count and report refused connections, and read the key file again if it has changed.

        Does not wait. Call it at least once per second: events stay in memory until then.
        """
        now = self._clock()
        self._read_events(now)
        self._report(now)
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            self._read_key_again()

    def close(self) -> None:
        """Refuse all new connections and stop counting. May be called more than once, and before or after the
        socket is closed."""
        if self._monitor is not None:
            assert self._socket is not None
            if not self._socket.closed:
                self._socket.monitor(None, 0)
            self._monitor.close()
            self._monitor = None
        self._authenticator.stop()

    def _read_events(self, now: float) -> None:
        for _ in range(MAX_EVENTS):
            try:
                if self._monitor is None:
                    break
                described, _address = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            event, value = EVENT.unpack(described)
            self._tally.add(event, value, now)
        self._tally.settle(now)

    def _report(self, now: float) -> None:
        refused = self._tally.refused
        new = refused - self._reported
        is_early = self._reported_at is not None and now - self._reported_at < WARNING_SECONDS
        # Unfinished handshakes alone are no reason for a warning: health checks cause them.
        if is_early or not new - Counter({Refusal.UNFINISHED: new[Refusal.UNFINISHED]}):
            return
        self._reported, self._reported_at = refused, now
        counts = ", ".join(f"{reason} {new[reason]}" for reason in Refusal if new[reason])
        unknown = self._allow_list.last_unknown.hex()[:16]
        last = f"; the last unknown key begins with {unknown}" if new[Refusal.UNKNOWN_KEY] else ""
        logger.warning("refused connections: %s (%d since the start)%s", counts, refused.total(), last)

    def _read_key_again(self) -> None:
        version = self._file_version()
        if version == self._version:
            return
        self._version = version
        try:
            key = FleetKey.read(self._path)
        except ConfigError as error:
            logger.error("the list of allowed keys is unchanged: %s", error)
            return
        if key.secret != self._key.secret:
            logger.warning("%s has another key pair: restart the replica to use it", self._path)
        self._key = key
        self._allow_list.replace(key.allowed)
        logger.info("read %s again: %d keys are allowed", self._path, len(key.allowed))

    def _file_version(self) -> FileVersion | None:
        try:
            status = self._path.stat()
        except (OSError, ValueError):
            return None
        return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
