"""Which peers get through a gate, over real sockets. What is refused is counted and has no effect."""

import contextlib
import logging
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from octavo.errors import ConfigError
from octavo.link.agent_messages import Refusal
from octavo.link.fleet_key import FleetKey, new_fleet_keys
from octavo.replica import gate
from octavo.replica.gate import (
    CHECK_SECONDS,
    MAX_MESSAGE_BYTES,
    WARNING_SECONDS,
    ConnectionTally,
    Gate,
)
from patience import HANG_SECONDS
from unit.replica.listener import Listener, Peer, RecordingProxy, SettableClock

SEED = 20
NUM_GARBAGE = 200
REPLICA, FRONT_END = new_fleet_keys()
_, STRANGER = new_fleet_keys()
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)

MakePeer = Callable[..., Peer]


def write_key(path: Path, allowed: Mapping[bytes, str]) -> None:
    """Replace the file at once, as an operator should."""
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_text(replace(REPLICA, allowed=allowed).text("test"))
    new.rename(path)


@pytest.fixture
def key_path(tmp_path: Path) -> Path:
    path = tmp_path / "replica.key"
    write_key(path, {FRONT_END.public: "front-end"})
    return path


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture(autouse=True)
def log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "octavo")  # a command may have changed it


@pytest.fixture(autouse=True)
def patient_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handshake fails because the machine is slow."""
    monkeypatch.setattr(gate, "HANDSHAKE_SECONDS", HANG_SECONDS)


@pytest.fixture
def listener(key_path: Path, clock: SettableClock) -> Iterator[Listener]:
    made = Listener(key_path, clock)
    yield made
    made.close()


@pytest.fixture
def peer(listener: Listener) -> Iterator[MakePeer]:
    with contextlib.ExitStack() as stack:

        def make(
            key: FleetKey | None = FRONT_END, server: bytes = REPLICA.public, port: int = listener.port
        ) -> Peer:
            made = Peer(port, key, server)
            stack.callback(made.close)
            return made

        yield make


def records_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == gate.__name__]


def assert_answers(listener: Listener, peer: Peer, message: bytes = b"hello") -> None:
    """An allowed peer sends a message, which is the next one that arrives, and gets the answer."""
    received = list(listener.received)
    answers: list[bytes] = []
    peer.send(message)

    def is_answered() -> bool:
        answers.extend(filter(None, [peer.answer()]))
        return bool(answers)

    listener.until(is_answered)
    assert answers == [b"echo " + message]
    assert listener.received == [*received, message]


def test_an_allowed_peer_gets_answers(listener: Listener, peer: MakePeer) -> None:
    allowed = peer()
    assert_answers(listener, allowed, b"one")
    assert_answers(listener, allowed, b"two")
    assert listener.names == ["front-end", "front-end"]
    assert set(listener.gate.refused.values()) == {0}


@pytest.mark.parametrize(
    ("key", "server", "reason"),
    [
        (None, b"", Refusal.HANDSHAKE),  # or UNFINISHED, if libzmq's client is the first to notice and closes
        (STRANGER, REPLICA.public, Refusal.UNKNOWN_KEY),
        (REPLICA, REPLICA.public, Refusal.UNKNOWN_KEY),  # its own key is not on its list
        (FRONT_END, STRANGER.public, Refusal.HANDSHAKE),
        # The public key is known, since it is not secret, and the secret key is another one.
        (replace(STRANGER, public=FRONT_END.public), REPLICA.public, Refusal.HANDSHAKE),
    ],
    ids=["no key", "unknown key", "own key", "wrong server key", "stolen public key"],
)
def test_another_peer_is_counted_and_has_no_effect(
    key: FleetKey | None, server: bytes, reason: Refusal, listener: Listener, peer: MakePeer
) -> None:
    refused = peer(key, server)
    refused.send(b"attack")
    reasons = {reason, Refusal.UNFINISHED} if key is None else {reason}
    listener.until_refused(1, *reasons)
    assert {why for why, number in listener.gate.refused.items() if number} <= reasons
    assert_answers(listener, peer())
    assert listener.received == [b"hello"]
    assert refused.answer() is None


@pytest.mark.parametrize("mechanism", [b"NULL", b"PLAIN", b"GSSAPI", b"curve", b""])
def test_another_mechanism_is_counted(mechanism: bytes, listener: Listener, peer: MakePeer) -> None:
    with socket.create_connection(("127.0.0.1", listener.port)) as connection:
        connection.sendall(GREETING.replace(b"CURVE".ljust(20, b"\0"), mechanism.ljust(20, b"\0")))
        listener.until_refused(1, Refusal.HANDSHAKE)
    assert_answers(listener, peer())


def test_a_key_is_added_and_removed_while_connections_exist(
    listener: Listener, key_path: Path, clock: SettableClock, peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    early = peer()
    assert_answers(listener, early)
    peer(STRANGER).send(b"too early")  # libzmq does not connect again after this
    listener.until_refused(1, Refusal.UNKNOWN_KEY)

    write_key(key_path, {STRANGER.public: "new"})
    clock.now += CHECK_SECONDS
    listener.gate.poll()
    assert_answers(listener, peer(STRANGER), b"added")
    assert listener.names == ["front-end", "new"]

    peer().send(b"removed")
    listener.until_refused(2, Refusal.UNKNOWN_KEY)
    assert listener.received == [b"hello", b"added"]
    # The connection that exists stays, and its messages are recognised.
    assert_answers(listener, early, b"still connected")
    assert listener.names == ["front-end", "new", None]
    assert "allowed keys" not in caplog.text


def test_an_invalid_file_changes_nothing_until_it_is_valid(
    listener: Listener, key_path: Path, clock: SettableClock, peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    valid = key_path.read_text()
    damaged: list[tuple[str | None, int]] = [(valid + "allow nothing", 0o600), (None, 0), (valid, 0o644)]
    for content, mode in damaged:
        caplog.clear()
        key_path.unlink(missing_ok=True)
        if content is not None:
            key_path.write_text(content)
            key_path.chmod(mode)
        for _ in range(3):
            clock.now += CHECK_SECONDS
            listener.gate.poll()
        assert [record.levelname for record in records_of(caplog)] == ["ERROR"]
        assert "the list of allowed keys is unchanged: fleet key: " in caplog.text
        assert REPLICA.secret.hex() not in caplog.text
        assert_answers(listener, peer())
    caplog.clear()
    key_path.chmod(0o600)  # changes neither the content nor the time of the last modification
    caplog.set_level(logging.INFO, "octavo")
    clock.now += CHECK_SECONDS
    listener.gate.poll()
    assert "1 keys are allowed" in caplog.text


def test_another_key_pair_needs_a_restart(
    listener: Listener, key_path: Path, clock: SettableClock, peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    key_path.write_text(replace(STRANGER, allowed=REPLICA.allowed).text("test"))
    clock.now += CHECK_SECONDS
    listener.gate.poll()
    assert "has another key pair: restart the replica" in caplog.text
    assert_answers(listener, peer())


def test_a_message_above_the_maximum_ends_the_connection(listener: Listener, peer: MakePeer) -> None:
    allowed = peer()
    assert_answers(listener, allowed)
    allowed.send(bytes(MAX_MESSAGE_BYTES))
    # The message is lost with its connection. The client connects again for the next one.
    assert_answers(listener, peer(), b"another peer")
    answers: list[bytes] = []

    def is_answered() -> bool:
        answer = allowed.answer()
        if answer is None:
            allowed.send(b"again")  # is lost as well, if the connection has not ended yet
        else:
            answers.append(answer)
        return bool(answers)

    listener.until(is_answered)
    assert answers == [b"echo again"]
    assert max(map(len, listener.received)) < 100
    # The monitor shows the same events as for a peer that disconnects, so this is not counted.
    assert set(listener.gate.refused.values()) == {0}


def test_a_message_of_the_maximum_size_arrives(listener: Listener, peer: MakePeer) -> None:
    message = bytes(MAX_MESSAGE_BYTES - 33)  # what CURVE adds
    allowed = peer()
    allowed.send(message)
    listener.until(lambda: listener.received == [message])


def garbage(source: random.Random) -> bytes:
    """Return random bytes, of which a part looks more and more like a handshake."""
    prefix = source.choice(
        [b"", b"\xff", GREETING[:10], GREETING[:12], GREETING, GREETING + b"\x04\xc8\x05HELLO"]
    )
    return prefix + source.randbytes(source.choice([1, 9, 64, 65, 300, 5000]))


def test_garbage_is_counted_and_has_no_effect(
    listener: Listener, clock: SettableClock, peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    before = peer()
    assert_answers(listener, before, b"before")
    with socket.create_connection(("127.0.0.1", listener.port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    listener.until_refused(1, Refusal.HANDSHAKE)
    source = random.Random(SEED)
    for _ in range(NUM_GARBAGE - 1):
        content = garbage(source)
        connection = socket.create_connection(("127.0.0.1", listener.port))
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(content)
        listener.gate.poll()
    listener.until_refused(NUM_GARBAGE, Refusal.HANDSHAKE, Refusal.UNFINISHED)
    assert listener.received == [b"before"]
    assert_answers(listener, before, b"the same connection")
    assert_answers(listener, peer(), b"a new connection")
    refused = dict(listener.gate.refused)
    assert sum(refused.values()) == NUM_GARBAGE
    assert refused[Refusal.UNKNOWN_KEY] == 0
    assert refused[Refusal.HANDSHAKE] > 0

    # Since the clock stood still, there was one warning. The next one has all that came since.
    assert ["handshake 1 (1 since the start)" in line.getMessage() for line in records_of(caplog)] == [True]
    clock.now += WARNING_SECONDS
    listener.gate.poll()
    clock.now += WARNING_SECONDS
    listener.gate.poll()
    assert len(records_of(caplog)) == 2
    assert f"({NUM_GARBAGE} since the start)" in records_of(caplog)[1].getMessage()


def test_a_replayed_session_is_counted_and_has_no_effect(listener: Listener, peer: MakePeer) -> None:
    proxy = RecordingProxy(listener.port)
    recorded = Peer(proxy.port, FRONT_END, REPLICA.public)
    assert_answers(listener, recorded, b"pay 100")
    recorded.close()
    session = proxy.recorded()
    assert session.startswith(GREETING[:1])
    assert b"pay 100" not in session
    for number in range(1, 4):
        with socket.create_connection(("127.0.0.1", listener.port)) as replaying:
            replaying.sendall(session)
            listener.until_refused(number, Refusal.HANDSHAKE)
    assert listener.received == [b"pay 100"]
    assert_answers(listener, peer())
    assert listener.gate.refused[Refusal.HANDSHAKE] == 3


def test_a_connection_without_a_handshake_is_counted_without_a_warning(
    listener: Listener, clock: SettableClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        socket.create_connection(("127.0.0.1", listener.port)).close()  # as a TCP health check does
    listener.until_refused(3, Refusal.UNFINISHED)
    clock.now += WARNING_SECONDS
    listener.gate.poll()
    assert listener.gate.refused == {Refusal.UNKNOWN_KEY: 0, Refusal.HANDSHAKE: 0, Refusal.UNFINISHED: 3}
    assert not records_of(caplog)


def test_a_silent_connection_is_ended(key_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "HANDSHAKE_SECONDS", 0.1)
    listener = Listener(key_path)
    with socket.create_connection(("127.0.0.1", listener.port)) as silent:
        silent.sendall(GREETING)
        listener.until_refused(1, Refusal.UNFINISHED)
    listener.close()


def test_events_that_are_not_read_block_nothing(
    listener: Listener, clock: SettableClock, peer: MakePeer
) -> None:
    """libzmq's default limit is 2,000 frames. Each event has 2 frames, and each connection 2 events."""
    for _ in range(1000):
        connection = socket.create_connection(("127.0.0.1", listener.port), timeout=HANG_SECONDS)
        with connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    peer().send(b"hello")
    assert listener.socket.poll(int(1000 * HANG_SECONDS))
    listener.gate.poll()
    clock.now += LATER  # the handshake of the peer has ended
    listener.until(lambda: listener.received == [b"hello"])
    listener.until_refused(1000, Refusal.HANDSHAKE)


def test_a_closed_gate_lets_no_peer_in(key_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A handshake that asks the authenticator while it ends gets no answer, and fails after this time.
    monkeypatch.setattr(gate, "HANDSHAKE_SECONDS", 1.0)
    listener = Listener(key_path)
    allowed = Peer(listener.port, FRONT_END, REPLICA.public)
    assert_answers(listener, allowed)
    listener.gate.close()
    events = listener.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    late = Peer(listener.port, FRONT_END, REPLICA.public)
    late.send(b"late")
    listener.until(lambda: bool(events.poll(0)))
    assert listener.received == [b"hello"]
    assert_answers(listener, allowed)  # connections that exist stay
    late.close()
    allowed.close()
    listener.socket.disable_monitor()
    events.close()
    listener.close()  # closes the gate again


def test_a_gate_needs_a_valid_key_file(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with pytest.raises(ConfigError, match="there is no file"):
        Gate(context, tmp_path / "replica.key")
    context.term()


def test_a_frame_from_elsewhere_has_no_name(listener: Listener) -> None:
    assert listener.gate.name_of(zmq.Frame(b"hello")) is None


ACCEPTED, DISCONNECTED = zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED
SUCCEEDED, FAILED = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
LATER = 2 * HANG_SECONDS + 1.0  # HANDSHAKE_SECONDS in these tests


@pytest.mark.parametrize(
    ("events", "now", "later"),
    [
        ([(ACCEPTED, 5)], 0, 1),  # what has no result after that time was not allowed
        ([(ACCEPTED, 5), (DISCONNECTED, 5)], 1, 1),
        ([(ACCEPTED, 5), (SUCCEEDED, 0)], 0, 0),
        ([(ACCEPTED, 5), (SUCCEEDED, 0), (DISCONNECTED, 5)], 0, 0),
        ([(ACCEPTED, 5), (FAILED, 1), (DISCONNECTED, 5)], 1, 1),
        # Which of two connections succeeded is not known until both handshakes must have ended.
        ([(ACCEPTED, 5), (ACCEPTED, 6), (SUCCEEDED, 0), (DISCONNECTED, 5)], 0, 1),
        ([(ACCEPTED, 5), (ACCEPTED, 6), (SUCCEEDED, 0), (FAILED, 1), (DISCONNECTED, 5)], 1, 1),
        ([(ACCEPTED, 5), (DISCONNECTED, 5), (ACCEPTED, 5), (SUCCEEDED, 0), (DISCONNECTED, 5)], 1, 1),
    ],
)
def test_connections_without_events_are_counted_as_a_difference(
    events: list[tuple[int, int]], now: int, later: int
) -> None:
    tally = ConnectionTally()
    for event, value in events:
        tally.add(event, value, 0.0)
        tally.settle(0.0)
    assert tally.refused[Refusal.HANDSHAKE] == now
    tally.settle(LATER)
    assert tally.refused[Refusal.HANDSHAKE] == later
