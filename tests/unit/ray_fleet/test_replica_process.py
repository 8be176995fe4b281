"""A replica outlives its supervisor. Exactly one other adopts it, if it wants such a replica."""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo.ray import replica_keeper, replica_process
from octavo.ray.replica_keeper import ReplicaKeeper
from octavo.ray.replica_process import FolderNotUsable, ReplicaProcess, replicas_folder
from octavo.ray.spec import ReplicaSpec
from patience import HANG_SECONDS

SPEC = ReplicaSpec("tests", ("--model", "m"), 1.0)
OTHER = ReplicaSpec("tests", ("--model", "other"), 1.0)
STAND_IN = Path(__file__).with_name("replica_stand_in.py")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="r") as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def machine(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without replicas, where `octavo replica` is a stand-in."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(short_folder))
    monkeypatch.setattr(replica_process, "OCTAVO", (sys.executable, str(STAND_IN)))
    monkeypatch.setattr(replica_keeper, "FIRST_DELAY", 0.01)
    yield
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"NOTIFY_SOCKET={short_folder}".encode() in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def reporting(process: ReplicaProcess) -> str:
    """Wait for the report of a process, and return its address, which is its process id here."""
    until(lambda: process.poll() and process.report is not None)
    assert process.report is not None
    return process.report.address


def is_alive(address: str) -> bool:
    """Whether a replica runs. A process that has ended may wait for the init process."""
    try:
        state = Path(f"/proc/{address.rpartition(':')[2]}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_next_supervisor_adopts_a_replica() -> None:
    process = ReplicaProcess.start(SPEC, "127.0.0.1")
    address = reporting(process)
    assert ReplicaProcess.adopt(SPEC) is None, "it has a supervisor"
    process.release()
    adopted = ReplicaProcess.adopt(SPEC)
    assert adopted is not None
    assert reporting(adopted) == address
    assert ReplicaProcess.adopt(SPEC) is None, "only one supervisor adopts it"
    adopted.terminate()
    until(lambda: not adopted.poll())
    adopted.remove()
    assert list(replicas_folder("tests").iterdir()) == []


def test_a_replica_with_other_options_is_ended() -> None:
    process = ReplicaProcess.start(OTHER, "127.0.0.1")
    address = reporting(process)
    process.release()
    assert ReplicaProcess.adopt(SPEC) is None
    until(lambda: not is_alive(address))


def test_what_a_dead_replica_has_left_is_removed() -> None:
    process = ReplicaProcess.start(SPEC, "127.0.0.1")
    reporting(process)
    process.kill()
    until(lambda: not process.poll())
    process.release()
    assert ReplicaProcess.adopt(SPEC) is None
    assert list(replicas_folder("tests").iterdir()) == []


def test_a_replica_that_does_not_report_now_is_adopted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    process = ReplicaProcess.start(SPEC, "127.0.0.1")
    pid = int(reporting(process).rpartition(":")[2])
    process.release()
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(replica_process, "ADOPTION_SECONDS", 0.2)
    assert ReplicaProcess.adopt(SPEC) is None
    os.kill(pid, signal.SIGCONT)
    monkeypatch.setattr(replica_process, "ADOPTION_SECONDS", HANG_SECONDS)
    assert ReplicaProcess.adopt(SPEC) is not None


def test_a_folder_that_others_can_access_is_not_used(short_folder: Path) -> None:
    folder = short_folder / f"octavo-ray-{os.getuid()}"
    folder.mkdir(mode=0o755)
    with pytest.raises(FolderNotUsable, match="only its user"):
        replicas_folder("tests")


def test_the_keeper_starts_a_replica_again_and_drains_it_at_the_end() -> None:
    keeper = ReplicaKeeper(SPEC, "127.0.0.1", grace=HANG_SECONDS)
    until(lambda: keeper.report is not None)
    assert keeper.report is not None
    first = keeper.report.address
    os.kill(int(first.rpartition(":")[2]), signal.SIGKILL)
    until(lambda: keeper.report is not None and keeper.report.address != first)
    assert keeper.num_starts == 2
    keeper.end()
    assert keeper.problem == "it has ended: see its log, among those of Ray on its node"
    assert list(replicas_folder("tests").iterdir()) == []


def test_a_replica_that_is_adopted_too_late_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """`end` is called while the keeper still waits for a report."""
    process = ReplicaProcess.start(SPEC, "127.0.0.1")
    address = reporting(process)
    process.release()
    adopt, may_adopt = ReplicaProcess.adopt, threading.Event()

    def adopt_late(spec: ReplicaSpec) -> ReplicaProcess | None:
        may_adopt.wait(HANG_SECONDS)
        return adopt(spec)

    monkeypatch.setattr(ReplicaProcess, "adopt", adopt_late)
    keeper = ReplicaKeeper(SPEC, "127.0.0.1", grace=HANG_SECONDS)
    ending = threading.Thread(target=keeper.end)
    ending.start()
    until(lambda: keeper.is_ending)
    may_adopt.set()
    ending.join()
    until(lambda: not is_alive(address))
    assert keeper.num_starts == 0


def test_the_keeper_says_why_there_is_no_replica() -> None:
    keeper = ReplicaKeeper(ReplicaSpec("tests", ("--fails",), 1.0), "127.0.0.1", grace=HANG_SECONDS)
    until(lambda: keeper.num_starts > 2)
    until(lambda: keeper.problem is not None and "see its log" in keeper.problem)
    keeper.end()
