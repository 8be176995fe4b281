"""What a service manager hears of a server: when it is ready, that it is well, and when it ends."""

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
    """The end of the socket where a service manager listens."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0"))
        self._socket.settimeout(HANG_SECONDS)

    def next(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()

    def until(self, word: str) -> list[str]:
        """All that comes up to this word, and the word."""
        heard: list[str] = []
        while word not in heard:
            heard += self.next()
        return heard

    def pending(self) -> list[str]:
        """What has come and was not read."""
        heard: list[str] = []
        self._socket.settimeout(0)
        try:
            while True:
                heard += self.next()
        except BlockingIOError:
            return heard
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


def tell_while(notifier: Notifier, answers: list[bool]) -> None:
    """Let it tell until it has asked so often whether we are live."""
    asked = iter(answers)

    async def run() -> None:
        telling = asyncio.create_task(notifier.keep_telling(lambda: next(asked)))
        await asyncio.wait([telling], timeout=HANG_SECONDS)
        assert isinstance(telling.exception(), RuntimeError), "there are no more answers"

    asyncio.run(run())


def test_each_state_is_told_and_children_hear_nothing_of_it(address: str, manager: Manager) -> None:
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
def test_it_is_well_as_often_as_it_is_live(address: str, manager: Manager, is_ready: bool) -> None:
    notifier = Notifier.take({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": OFTEN})
    if is_ready:
        notifier.ready()
        manager.next()
    tell_while(notifier, [True, False, False, True, False])
    heard = Counter(manager.pending())
    assert heard["WATCHDOG=1"] == 2
    # A model that is being loaded has all the time it takes; a server that is ready asks for none.
    assert sum(word.startswith("EXTEND_TIMEOUT_USEC=") for word in heard.elements()) == (0 if is_ready else 2)


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
def test_where_nobody_looks_nothing_is_told_of_it(
    watch: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.server.notify.LOADING_SECONDS", 0)
    manager = Manager(str(tmp_path / "n"))
    tell_while(Notifier.take({"NOTIFY_SOCKET": str(tmp_path / "n"), **watch}), [True, True])
    heard = manager.pending()
    manager.close()
    assert heard
    assert "WATCHDOG=1" not in heard


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:9"}])
def test_without_a_service_manager_nothing_is_done(environ: dict[str, str]) -> None:
    notifier = Notifier.take(environ)
    notifier.loading()
    asyncio.run(notifier.keep_telling(lambda: True))
    notifier.ready()


def test_a_manager_that_does_not_listen_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="octavo")
    notifier = Notifier.take({"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": OFTEN})
    notifier.ready()
    tell_while(notifier, [True, True])
    notifier.stopping()
    assert len(re.findall("cannot be told", caplog.text)) == 1


def test_what_a_busy_manager_missed_is_told_again(address: str, manager: Manager) -> None:
    notifier = Notifier.take({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": OFTEN})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # until the queue is full
            while True:
                other.sendto(b"A=1", address.replace("@", "\0"))
    notifier.ready()
    assert set(manager.pending()) == {"A=1"}
    notifier.close()
    assert manager.pending() == ["READY=1", "STATUS=serving"]


@pytest.mark.xdist_group("server")
def test_a_service_manager_hears_of_a_server_from_start_to_end(start: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "notify"
    manager = Manager(str(path))
    server = start(environ={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"})
    heard = manager.until("READY=1")
    assert heard[0] == "STATUS=loading the model"
    assert server.get("/readyz").status_code == 200, "ready means ready"
    for _ in range(5):
        heard += manager.until("WATCHDOG=1")
    assert server.engine_pid is not None
    for pid in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split():
        assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert "STOPPING=1" not in heard
    server.terminate()
    heard += manager.until("STOPPING=1")
    assert server.process.wait(HANG_SECONDS) == 0
    manager.close()
    assert heard.count("READY=1") == 1


@pytest.mark.xdist_group("server")
def test_a_server_that_is_stopped_while_it_loads_says_so(start: StartServer, tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    server = start(environ={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    server.terminate()
    manager.until("STOPPING=1")
    assert server.process.wait(HANG_SECONDS) == 0
    manager.close()
