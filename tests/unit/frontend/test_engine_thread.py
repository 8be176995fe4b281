"""Whoever waits may be interrupted anywhere; the thread goes on, in order, and for everybody else."""

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


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.stop()


# Thousands of moments, most of them in the few bytecodes around a wait.
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
    """By itself: what measures coverage has locks of its own, which an interrupt can leave held."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_results_and_errors_are_the_callers(thread: EngineThread) -> None:
    assert thread.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        thread.run(divmod, 7, 0)
    assert thread.run(threading.get_ident) == thread.run(threading.get_ident) != threading.get_ident()


def test_an_interrupt_anywhere_is_an_interrupt_and_the_thread_goes_on() -> None:
    ended = run_python(INTERRUPTIONS)
    assert (ended.stderr, ended.returncode) == ("", 0)


def test_what_an_interrupted_caller_asked_for_still_happens(thread: EngineThread) -> None:
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(thread.arun(slowly), 0.01)

    given_up, happened = threading.Event(), threading.Event()

    def slowly() -> None:
        given_up.wait()
        happened.set()

    asyncio.run(give_up())  # and the loop is closed by the time of the outcome
    given_up.set()
    assert thread.run(happened.is_set)


def test_tasks_and_threads_are_served_in_the_order_they_came(thread: EngineThread) -> None:
    order: list[int] = []

    async def many() -> None:
        await asyncio.gather(*(thread.arun(order.append, number) for number in range(50)))

    asyncio.run(many())
    assert order == list(range(50))


def test_a_stopped_thread_says_so(thread: EngineThread) -> None:
    thread.stop()
    with pytest.raises(RuntimeError, match="closed"):
        thread.run(int)
    thread.stop()


def test_it_ends_with_its_owner_and_holds_nothing_between_calls() -> None:
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


def test_python_ends_without_waiting_for_a_stop() -> None:
    program = "from octavo.frontend.engine_thread import EngineThread as T; t = T(); print(t.run(int))"
    ended = run_python(program)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("0\n", "", 0)
