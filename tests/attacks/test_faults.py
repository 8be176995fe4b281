"""Faults of the machine: the server recovers when they end, and its errors reveal no internals."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from attacks.conftest import StartAttacked
from attacks.neighbour import AUTHORIZATION, beside, eventually
from octavo.link.run_folder import sweep
from patience import HANG_SECONDS
from server.hostile import COMPLETIONS, LEAKS
from server.process import Server, is_alive

pytestmark = pytest.mark.xdist_group("attacks")

ON_A_SMALL_DISK = (
    *("unshare", "--map-root-user", "--mount", "sh", "-c"),
    'mount -t tmpfs -o size=64k tmpfs "$TMPDIR" && exec "$@"',
    "sh",
)
GRAMMAR = {"prompt": "x", "max_tokens": 4, "structured_outputs": {"regex": "[0-9]{4}"}}


def kill_engine(server: Server) -> None:
    engine = server.engine_pid
    assert engine is not None
    os.kill(engine, signal.SIGKILL)


def run_folder(parent: Path) -> Path:
    (folder,) = parent.glob("octavo-*")
    return folder


def check_no_engine(server: Server) -> None:
    """Check that the server reports the problem without internals, and accepts requests that can wait."""
    assert eventually(lambda: "problem" in server.get("/readyz").text)
    ready = server.get("/readyz")
    hurried = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1, "timeout": 0.2}, AUTHORIZATION)
    assert ready.status_code == 503
    assert hurried.status_code == 408
    assert server.get("/livez").status_code == 200
    for answer in (ready, hurried):
        assert not LEAKS.search(answer.text), answer.text
        assert str(server.temporary) not in answer.text


def test_the_server_survives_a_deleted_run_folder(start: StartAttacked) -> None:
    """First the run folder is deleted, then the whole temporary folder, until it exists again."""
    server = start()
    with beside(server, max_tokens=2000, once=True):
        shutil.rmtree(run_folder(server.temporary))
        kill_engine(server)
        server.wait_for_log("the engine is ready again")
    with beside(server, max_tokens=2000, once=True):
        shutil.rmtree(server.temporary)
        server.temporary.write_text("no folder")
        kill_engine(server)
        check_no_engine(server)
        server.temporary.unlink()
        server.temporary.mkdir()
        assert eventually(lambda: server.get("/readyz").status_code == 200)
    assert server.log.count("the engine is ready again") == 2


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    environ = os.environ | {"TMPDIR": str(tmp_path_factory.mktemp("disk"))}
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run([*ON_A_SMALL_DISK, "true"], env=environ, check=False).returncode == 0:
            return ON_A_SMALL_DISK
    pytest.skip("no disk can be mounted here")


def test_the_server_survives_a_full_disk(start: StartAttacked, small_disk: tuple[str, ...]) -> None:
    server = start(prefix=small_disk)
    folder = Path(f"/proc/{server.process.pid}/root{server.temporary}")  # as the server sees it
    assert run_folder(folder)
    with beside(server, max_tokens=2000, once=True):
        filler = folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        kill_engine(server)
        check_no_engine(server)
        filler.unlink()
        assert eventually(lambda: server.get("/readyz").status_code == 200)


@pytest.mark.parametrize("module", ["octavo.grammar.check_process", "octavo.prompting.process"])
def test_a_killed_helper_process_costs_no_request(start: StartAttacked, module: str) -> None:
    """Neither while it is idle nor just before a request; in some rounds, only its workers are killed."""
    server = start()
    for number in range(6):
        body = GRAMMAR | {"structured_outputs": {"regex": f"[0-9]{{4}}{number}"}}
        answer = server.post(COMPLETIONS, body, AUTHORIZATION)
        assert answer.status_code == 200, (number, answer.text)
        helper = child(server, module)
        assert helper is not None
        workers = [int(pid) for pid in Path(f"/proc/{helper}/task/{helper}/children").read_text().split()]
        killed = workers if workers and number % 3 == 0 else [helper, *workers]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        if number % 2:
            assert eventually(partial(are_dead, killed))


def are_dead(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))


# -- shutdown ------------------------------------------------------------------------------------------------


def child(server: Server, module: str) -> int | None:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    # Some are started by other threads than the main thread.
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        children += (task / "children").read_text().split()
    return next(
        (int(pid) for pid in children if module in Path(f"/proc/{pid}/cmdline").read_bytes().decode()), None
    )


@contextlib.contextmanager
def waiting(server: Server) -> Iterator[None]:
    """Send a request that waits for the stopped process until the server exits."""

    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError):
            server.post(COMPLETIONS, GRAMMAR | {"prompt": "y"}, AUTHORIZATION)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    yield
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize("module", ["octavo.grammar.check_process", "octavo.prompting.process", ".engine"])
def test_sigterm_ends_the_server_whichever_process_hangs(start: StartAttacked, module: str) -> None:
    server = start("--grace", "1")
    assert server.post(COMPLETIONS, GRAMMAR, AUTHORIZATION).status_code == 200
    hung = child(server, module)
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    with waiting(server):
        time.sleep(0.2)
        server.terminate()
        assert server.process.wait(HANG_SECONDS) in (0, 1)
    assert eventually(lambda: not is_alive(hung))
    assert list(server.temporary.iterdir()) == []


def test_run_folders_of_killed_servers_are_removed(start: StartAttacked) -> None:
    """Run folders of running servers are kept."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as path:  # short: sockets have short names
        shared = Path(path)
        environ = {"TMPDIR": path}
        first = start(environ=environ)
        left = run_folder(shared)
        sweep(shared)
        assert left.exists()
        first.process.kill()
        first.process.wait()
        assert left.exists()
        second = start(environ=environ)
        assert run_folder(shared) != left
        second.process.kill()
        second.process.wait()
