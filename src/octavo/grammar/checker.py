"""Check in another process, which can be killed, whether a grammar can be used.

    front end                                  octavo.grammar.check_process
    submit(spec) -> Future                     reads a line and forks; the child compiles, and the kernel
       |  one line of JSON                     kills it if it takes too much time or memory
       +---------------------------------->    |
       <----------------------------------+    writes a line: the problem with the grammar, if any

Neither engine steps nor event loops wait for a check. Checks wait in a queue that is fair between tenants, by
the seconds that their checks take. Verdicts, positive and negative, are cached in up to KNOWN_BYTES.
"""

import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from octavo.errors import GrammarError, GrammarNotChecked, TooManyGrammars
from octavo.fairness.queue import FairEntry, FairQueue
from octavo.fairness.shared_room import SharedRoom
from octavo.fairness.tenant import ONLY_TENANT, Tenant
from octavo.grammar.limits import KNOWN_BYTES, check_spec, estimated_bytes
from octavo.grammar.lru import ByteBoundedLru
from octavo.protocol import GrammarSpec

logger = logging.getLogger(__name__)

CHECK_MODULE = "octavo.grammar.check_process"
MAX_WAITING = 256  # checks; beyond this, one for each tenant
RETRY_AFTER = 2.0  # seconds
MAX_ATTEMPTS = 2  # at one check, if the process dies
TIMEOUT = 30.0  # seconds; far longer than any verdict takes, even that a grammar is too complex

NOT_CHECKED = "the grammar could not be checked; send the request again"
QUEUE_FULL = "too many grammars are waiting to be checked; send the request again later"


class Verdict(msgspec.Struct, frozen=True):
    problem: str | None = None  # None: the grammar can be used
    is_final: bool = True  # False: inconclusive; a later check of the same grammar may succeed


@dataclass(frozen=True, eq=False)
class PendingCheck:
    """A check that waits or runs."""

    spec: GrammarSpec
    tenant: Tenant
    future: "Future[None]"


class GrammarChecker:
    """Thread-safe. The process starts with the first check, and again with the next check if it has died."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the next five attributes; held only briefly
        self._verdicts: ByteBoundedLru[GrammarSpec, Verdict] = ByteBoundedLru(KNOWN_BYTES)
        self._queue: FairQueue[PendingCheck] = FairQueue()
        self._room = SharedRoom(MAX_WAITING)  # of checks without a result
        self._is_running = False  # whether the thread empties the queue
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar-check")
        self._process: subprocess.Popen[bytes] | None = None  # used on that thread only, except in `close`

    def check(self, spec: GrammarSpec) -> None:
        """Raise GrammarError if the grammar cannot be used. Blocks until there is a verdict."""
        self.submit(spec).result()

    def submit(self, spec: GrammarSpec, tenant: Tenant = ONLY_TENANT) -> "Future[None]":
        """Return a future that fails with GrammarError if the grammar cannot be used.

        In an event loop, use `wrap_future`. A check that is cancelled while it waits does not run.
        """
        try:
            check_spec(spec)
            with self._lock:
                known = self._verdicts.get(spec)
                entry = self._put(spec, tenant) if known is None else None
        except GrammarError as error:
            return _completed(error)
        if entry is None:
            assert known is not None
            return _completed(None if known.problem is None else GrammarError(known.problem))
        entry.item.future.add_done_callback(
            lambda future: self._withdraw(entry) if future.cancelled() else None
        )
        return entry.item.future

    def close(self) -> None:
        """Stop the process. Pending checks end without a verdict."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            process = self._process
            if process is not None:
                process.kill()  # unblocks the thread if it is reading
            self._thread.submit(self._end_process)
            self._thread.shutdown()

    def _put(self, spec: GrammarSpec, tenant: Tenant) -> FairEntry[PendingCheck]:
        if self._is_closed:
            raise GrammarNotChecked(NOT_CHECKED)
        is_idle = not self._room.used_by(tenant)
        if not (is_idle or self._room.is_guaranteed(tenant, 1) or self._room.fits(tenant, 1)):
            raise TooManyGrammars(QUEUE_FULL, RETRY_AFTER)
        self._room.take(tenant, 1)
        entry = self._queue.put(tenant, PendingCheck(spec, tenant, Future()))
        if not self._is_running:
            self._is_running = True
            self._thread.submit(self._run)
        return entry

    def _withdraw(self, entry: FairEntry[PendingCheck]) -> None:
        with self._lock:
            self._room.give(entry.item.tenant, 1)
            self._queue.remove(entry)

    # -- on the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        """Run checks until none waits."""
        while True:
            with self._lock:
                entry = self._queue.take()
                self._is_running = entry is not None
            if entry is None:
                return
            if entry.item.future.set_running_or_notify_cancel():
                self._check(entry)
            else:  # cancelled since it was taken
                with self._lock:
                    self._queue.end(entry, 0.0)

    def _check(self, entry: FairEntry[PendingCheck]) -> None:
        error: BaseException | None = None
        started = self._clock()
        try:
            self._check_spec(entry.item.spec)
        except BaseException as problem:
            error = problem
        with self._lock:  # before the result, after which the tenant may submit its next check
            self._room.give(entry.item.tenant, 1)
            self._queue.end(entry, self._clock() - started)
        if error is None:
            entry.item.future.set_result(None)
        else:
            entry.item.future.set_exception(error)

    def _check_spec(self, spec: GrammarSpec) -> None:
        with self._lock:
            verdict = self._verdicts.get(spec)  # another request may have checked it meanwhile
        if verdict is None:
            verdict = self._query_process(spec)
            if not verdict.is_final:
                raise GrammarNotChecked(verdict.problem or NOT_CHECKED)
            with self._lock:
                self._verdicts.put(spec, verdict, estimated_bytes(spec))
        if verdict.problem is not None:
            raise GrammarError(verdict.problem)

    def _query_process(self, spec: GrammarSpec) -> Verdict:
        """Return the verdict. If the process is dead or dies meanwhile, the check runs again in a new one."""
        for _ in range(MAX_ATTEMPTS):
            if self._is_closed:
                break
            try:
                return self._query_once(spec)
            except (OSError, msgspec.DecodeError):
                logger.warning("the grammar check process died; starting a new one")
                self._end_process()
        raise GrammarNotChecked(NOT_CHECKED)

    def _query_once(self, spec: GrammarSpec) -> Verdict:
        if self._process is None:
            self._process = _start_process()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        process.stdin.flush()
        # A verdict is one line, which the process writes at once.
        answers = select.poll()  # `select.select` supports only small descriptors
        answers.register(process.stdout, select.POLLIN)
        if not answers.poll(1000 * TIMEOUT):
            self._end_process()
            logger.warning("the grammar check process did not answer; the next check starts a new one")
            raise GrammarNotChecked(NOT_CHECKED)
        return msgspec.json.decode(process.stdout.readline(), type=Verdict)

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _start_process() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", CHECK_MODULE, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C must not reach the child
    )


def _completed(error: GrammarError | None) -> "Future[None]":
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future
