"""Notifications to the service manager: readiness, watchdog and shutdown."""

import asyncio
import contextlib
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.server.notify import LOADING_SECONDS, Notifier
from patience import HANG_SECONDS
from server.process import StartServer

OFTEN = "20000"  # microseconds


class Manager:
    """The service manager's end of the notification socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0"))
        self._socket.settimeout(HANG_SECONDS)

    def next(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()

    def until(self, word: str) -> list[str]:
        """Return all messages up to and including this one."""
        received: list[str] = []
        while word not in received:
            received += self.next()
        return received

    def pending(self) -> list[str]:
        """Return the messages that were received and not read yet."""
        received: list[str] = []
        self._socket.settimeout(0)
        try:
            while True:
                received += self.next()
        except BlockingIOError:
            return received
        finally:
            self._socket.settimeout(HANG_SECONDS)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "n") if request.param == "path" else f"@octavo-test-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def manager(address: str) -> Iterator[Manager]:
    listening = Manager(address)
    yield listening
    listening.close()


def notify_while(notifier: Notifier, answers: list[bool]) -> None:
    """Run the notifier until it has checked liveness once for each of the answers."""
    asked = iter(answers)

    async def run() -> None:
        notifying = asyncio.create_task(notifier.keep_notifying(lambda: next(asked)))
        await asyncio.wait([notifying], timeout=HANG_SECONDS)
        assert isinstance(notifying.exception(), RuntimeError), (
            "the notifier must end when there are no more answers"
        )

    asyncio.run(run())


def test_each_state_is_sent_and_child_processes_do_not_inherit_the_socket(
    address: str, manager: Manager
) -> None:
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": OFTEN, "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    notifier = Notifier.take(environ)
    assert environ == {"A": "b"}
    notifier.loading()
    assert manager.next() == ["STATUS=loading the model", f"EXTEND_TIMEOUT_USEC={LOADING_SECONDS}000000"]
    notifier.ready()
    assert manager.next() == ["READY=1", "STATUS=serving"]
    notifier.stopping()
    assert manager.next()[0] == "STOPPING=1"
    notifier.close()
    notifier.ready()
    assert manager.pending() == []


@pytest.mark.parametrize("is_ready", [False, True])
def test_the_watchdog_is_notified_only_while_the_server_is_live(
    address: str, manager: Manager, is_ready: bool
) -> None:
    notifier = Notifier.take({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": OFTEN})
    if is_ready:
        notifier.ready()
        manager.next()
    notify_while(notifier, [True, False, False, True, False])
    received = Counter(manager.pending())
    assert received["WATCHDOG=1"] == 2
    # The timeout is extended while a model is loading, but not once the server is ready.
    assert sum(word.startswith("EXTEND_TIMEOUT_USEC=") for word in received.elements()) == (
        0 if is_ready else 2
    )


@pytest.mark.parametrize(
    "watch",
    [
        {},
        {"WATCHDOG_USEC": OFTEN, "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "often"},
    ],
)
def test_no_watchdog_message_is_sent_without_a_watchdog(
    watch: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.server.notify.LOADING_SECONDS", 0)
    manager = Manager(str(tmp_path / "n"))
    notify_while(Notifier.take({"NOTIFY_SOCKET": str(tmp_path / "n"), **watch}), [True, True])
    received = manager.pending()
    manager.close()
    assert received
    assert "WATCHDOG=1" not in received


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:9"}])
def test_nothing_is_sent_without_a_service_manager(environ: dict[str, str]) -> None:
    notifier = Notifier.take(environ)
    notifier.loading()
    asyncio.run(notifier.keep_notifying(lambda: True))
    notifier.ready()


def test_a_manager_that_does_not_listen_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="octavo")
    notifier = Notifier.take({"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": OFTEN})
    notifier.ready()
    notify_while(notifier, [True, True])
    notifier.stopping()
    assert len(re.findall("cannot notify the service manager", caplog.text)) == 1


def test_a_state_that_a_busy_manager_missed_is_sent_again(address: str, manager: Manager) -> None:
    notifier = Notifier.take({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": OFTEN})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # ends when the queue is full
            while True:
                other.sendto(b"A=1", address.replace("@", "\0"))
    notifier.ready()
    assert set(manager.pending()) == {"A=1"}
    notifier.close()
    assert manager.pending() == ["READY=1", "STATUS=serving"]


def test_a_manager_that_starts_late_is_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.server.notify.RESEND_SECONDS", 0.01)
    notifier = Notifier.take({"NOTIFY_SOCKET": str(tmp_path / "n")})

    async def run() -> list[str]:
        notifying = asyncio.create_task(notifier.keep_notifying(lambda: True))
        await asyncio.sleep(0)  # the pause has begun
        notifier.ready()
        manager = Manager(str(tmp_path / "n"))
        received = await asyncio.to_thread(manager.next)
        await asyncio.sleep(0.1)
        received += manager.pending()
        notifying.cancel()
        manager.close()
        return received

    received = asyncio.run(run())
    assert received.count("READY=1") == 1
    assert received.count("STATUS=serving") == 1


def test_a_missed_watchdog_message_is_not_sent_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.server.notify.RESEND_SECONDS", 0.01)
    notifier = Notifier.take({"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "60000000"})
    notifier.ready()

    async def run() -> list[str]:
        notifying = asyncio.create_task(notifier.keep_notifying(lambda: True))
        await asyncio.sleep(0)
        manager = Manager(str(tmp_path / "n"))
        received = await asyncio.to_thread(manager.next)
        notifying.cancel()
        manager.close()
        return received

    assert asyncio.run(run()) == ["READY=1", "STATUS=serving"]


@pytest.mark.xdist_group("server")
def test_a_service_manager_is_notified_from_start_to_shutdown(start: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "notify"
    manager = Manager(str(path))
    server = start(environ={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"})
    received = manager.until("READY=1")
    assert received[0] == "STATUS=loading the model"
    assert server.get("/readyz").status_code == 200, "READY=1 must mean that /readyz returns 200"
    for _ in range(5):
        received += manager.until("WATCHDOG=1")
    assert server.engine_pid is not None
    for pid in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split():
        assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert "STOPPING=1" not in received
    server.terminate()
    received += manager.until("STOPPING=1")
    assert server.process.wait(HANG_SECONDS) == 0
    manager.close()
    assert received.count("READY=1") == 1


@pytest.mark.xdist_group("server")
def test_shutdown_while_loading_is_notified(start: StartServer, tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    server = start(environ={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    server.terminate()
    manager.until("STOPPING=1")
    assert server.process.wait(HANG_SECONDS) == 0
    manager.close()
