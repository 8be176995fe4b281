"""One thread that does what it is given, in order, for callers who may be interrupted while they wait.

A `concurrent.futures.Future` waits in Python code that holds a lock: Ctrl-C at the wrong bytecode becomes a
RuntimeError there, or leaves the lock held, and the thread that would set the result waits for ever. Here a
caller waits in one call of C, which an interrupt leaves as it was.
"""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    result: Any = None
    error: BaseException | None = None

    def unwrap(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


@dataclass(frozen=True)
class Job:
    work: Callable[[], Any]
    deliver: Callable[[Outcome], None]


class EngineThread:
    """Any thread may call. Stopped by `stop`, with its owner's memory, or when Python ends."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()  # nothing comes into the queue after the None that ends it
        self._is_stopped = False
        thread = threading.Thread(target=_work, args=(self._jobs,), name="octavo-engine", daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end, self._jobs, thread)

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of the function, called there. Interrupted, it still runs; nobody hears of it."""
        outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self._put(Job(lambda: function(*args, **kwargs), outcomes.put))
        result: T = outcomes.get().unwrap()
        return result

    async def arun(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Outcome] = loop.create_future()

        def tell(outcome: Outcome) -> None:
            if not told.done():  # cancelled: nobody waits any more
                told.set_result(outcome)

        def deliver(outcome: Outcome) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell, outcome)

        self._put(Job(lambda: function(*args, **kwargs), deliver))
        result: T = (await told).unwrap()
        return result

    def stop(self) -> None:
        """After what was asked for until now."""
        with self._lock:
            self._is_stopped = True
        self._end()

    def _put(self, job: Job) -> None:
        with self._lock:
            if self._is_stopped:
                raise RuntimeError("this LLM is closed: make a new one")
            self._jobs.put(job)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            outcome = Outcome(job.work())
        except BaseException as error:  # it is the caller's
            outcome = Outcome(error=error)
        with contextlib.suppress(RuntimeError):  # the event loop closed between our look and our call
            job.deliver(outcome)
        del job, outcome  # while we wait for the next one, nobody's memory is held here


def _end(jobs: SimpleQueue[Job | None], thread: threading.Thread) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join()
