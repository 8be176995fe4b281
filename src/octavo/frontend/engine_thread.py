"""One thread that runs jobs in order, for callers that may be interrupted while they wait.

A `concurrent.futures.Future` waits in Python code that holds a lock. Ctrl-C at the wrong bytecode raises a
RuntimeError there, or leaves the lock held, and the thread that sets the result waits forever. Here a caller
waits in one C call (`SimpleQueue.get`), which an interrupt leaves in a consistent state.
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
class CallResult:
    result: Any = None
    error: BaseException | None = None

    def unwrap(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


@dataclass(frozen=True)
class Job:
    work: Callable[[], Any]
    deliver: Callable[[CallResult], None]


class EngineThread:
    """Thread-safe. Ends with `stop`, when the object is garbage-collected, or when Python exits."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()  # so that no job enters the queue after the final None
        self._is_stopped = False
        thread = threading.Thread(target=_work, args=(self._jobs,), name="octavo-engine", daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end, self._jobs, thread)

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function on the thread and return its result.

        If the caller is interrupted, the function still runs and its result is discarded.
        """
        outcomes: SimpleQueue[CallResult] = SimpleQueue()
        self._put(Job(lambda: function(*args, **kwargs), outcomes.put))
        result: T = outcomes.get().unwrap()
        return result

    async def arun(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        received: asyncio.Future[CallResult] = loop.create_future()

        def set_result(outcome: CallResult) -> None:
            if not received.done():  # it is done if the caller was cancelled
                received.set_result(outcome)

        def deliver(outcome: CallResult) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(set_result, outcome)

        self._put(Job(lambda: function(*args, **kwargs), deliver))
        result: T = (await received).unwrap()
        return result

    def stop(self) -> None:
        """Stop the thread after the jobs that are already queued."""
        with self._lock:
            self._is_stopped = True
        self._end()

    def _put(self, job: Job) -> None:
        with self._lock:
            if self._is_stopped:
                raise RuntimeError("this LLM is closed: create a new one")
            self._jobs.put(job)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            outcome = CallResult(job.work())
        except BaseException as error:  # raised again in the caller
            outcome = CallResult(error=error)
        with contextlib.suppress(RuntimeError):  # the event loop was closed after `deliver` checked it
            job.deliver(outcome)
        del job, outcome  # keep no references while waiting for the next job


def _end(jobs: SimpleQueue[Job | None], thread: threading.Thread) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join()
