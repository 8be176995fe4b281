"""A waiting caller can be interrupted at any point; the thread continues with other calls in order."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from octavo.frontend.engine_thread import EngineThread
from patience import HANG_SECONDS


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.stop()


# Interrupts at thousands of moments, most of them in the few bytecodes around a wait.
INTERRUPTIONS = """
import signal
from octavo.frontend.engine_thread import EngineThread

signal.signal(signal.SIGALRM, signal.default_int_handler)
thread = EngineThread()
done = []
interrupted = 0
for number in range(3000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number % 97))
        while True:
            thread.run(int)
    except KeyboardInterrupt:
        interrupted += 1
    thread.run(done.append, number)
assert interrupted == 3000
assert done == list(range(3000))
"""


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in its own process, without coverage: an interrupt can leave coverage's locks held."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )


def test_results_and_errors_reach_the_caller(thread: EngineThread) -> None:
    assert thread.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        thread.run(divmod, 7, 0)
    assert thread.run(threading.get_ident) == thread.run(threading.get_ident) != threading.get_ident()


def test_interrupts_at_any_point_reach_the_caller_and_the_thread_continues() -> None:
    ended = run_python(INTERRUPTIONS)
    assert (ended.stderr, ended.returncode) == ("", 0)


def test_the_call_of_a_cancelled_caller_still_runs(thread: EngineThread) -> None:
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(thread.arun(slowly), 0.01)

    given_up, happened = threading.Event(), threading.Event()

    def slowly() -> None:
        given_up.wait()
        happened.set()

    asyncio.run(give_up())  # the loop is closed before the call finishes
    given_up.set()
    assert thread.run(happened.is_set)


def test_calls_run_in_order_of_arrival(thread: EngineThread) -> None:
    order: list[int] = []

    async def many() -> None:
        await asyncio.gather(*(thread.arun(order.append, number) for number in range(50)))

    asyncio.run(many())
    assert order == list(range(50))


def test_calls_on_a_stopped_thread_raise(thread: EngineThread) -> None:
    thread.stop()
    with pytest.raises(RuntimeError, match="closed"):
        thread.run(int)
    thread.stop()


def test_the_thread_ends_with_its_owner_and_keeps_no_references() -> None:
    class Heavy:
        def method(self) -> "Heavy":
            return self

    heavy = Heavy()
    gone = weakref.ref(heavy)
    thread = EngineThread()
    (own_thread,) = (each for each in threading.enumerate() if each.ident == thread.run(threading.get_ident))
    thread.run(heavy.method)
    del heavy
    thread.run(int)
    gc.collect()
    assert gone() is None
    del thread
    gc.collect()
    assert not own_thread.is_alive()


def test_python_exits_without_a_stop() -> None:
    program = "from octavo.frontend.engine_thread import EngineThread as T; t = T(); print(t.run(int))"
    ended = run_python(program)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("0\n", "", 0)
