"""Check in another process, which can be killed, whether a grammar can be used.

    front end                                  octavo.grammar.check_process
    submit(spec) -> Future                     reads a line and forks; the child compiles, and the kernel
       |  one line of JSON                     kills it if it takes too much time or memory
       +---------------------------------->    |
       <----------------------------------+    writes a line: the problem with the grammar, if any

Neither engine steps nor event loops wait for a check. Verdicts, positive and negative, are cached in up to
KNOWN_BYTES.
"""

import logging
import os
import select
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from octavo.errors import GrammarError, GrammarNotChecked
from octavo.grammar.limits import KNOWN_BYTES, check_spec, estimated_bytes
from octavo.grammar.lru import ByteBoundedLru
from octavo.protocol import GrammarSpec

logger = logging.getLogger(__name__)

CHECK_MODULE = "octavo.grammar.check_process"
MAX_WAITING = 256
TIMEOUT = 30.0  # seconds; far longer than any verdict takes, even that a grammar is too complex

NOT_CHECKED = "the grammar could not be checked; send the request again"
QUEUE_FULL = "too many grammars are waiting to be checked; send the request again later"


class Verdict(msgspec.Struct, frozen=True):
    problem: str | None = None  # None: the grammar can be used
    is_final: bool = True  # False: inconclusive; a later check of the same grammar may succeed


class GrammarChecker:
    """Thread-safe. The process starts with the first check, and again with the next check if it has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the next two attributes; held only briefly
        self._verdicts: ByteBoundedLru[GrammarSpec, Verdict] = ByteBoundedLru(KNOWN_BYTES)
        self._num_waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar-check")
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None  # used on that thread only, except in `close`

    def check(self, spec: GrammarSpec) -> None:
        """Raise GrammarError if the grammar cannot be used. Blocks until there is a verdict."""
        self.submit(spec).result()

    def submit(self, spec: GrammarSpec) -> "Future[None]":
        """Return a future that fails with GrammarError if the grammar cannot be used.

        In an event loop, use `wrap_future`.
        """
        try:
            check_spec(spec)
            with self._lock:
                known = self._verdicts.get(spec)
                if known is None and self._num_waiting >= MAX_WAITING:
                    raise GrammarNotChecked(QUEUE_FULL)
                self._num_waiting += known is None
        except GrammarError as error:
            return _completed(error)
        if known is not None:
            return _completed(None if known.problem is None else GrammarError(known.problem))
        future = self._thread.submit(self._check, spec)
        future.add_done_callback(self._count_done)
        return future

    def close(self) -> None:
        """Stop the process. Pending checks end without a verdict."""
        if not self._is_closed:
            self._is_closed = True
            process = self._process
            if process is not None:
                process.kill()  # unblocks the thread if it is reading
            self._thread.submit(self._end_process)
            self._thread.shutdown()

    def _count_done(self, _: "Future[None]") -> None:
        with self._lock:
            self._num_waiting -= 1

    # -- on the thread -----------------------------------------------------------------------------------

    def _check(self, spec: GrammarSpec) -> None:
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
        try:
            if self._is_closed:
                raise GrammarNotChecked(NOT_CHECKED)
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
                process.kill()
            return msgspec.json.decode(process.stdout.readline(), type=Verdict)
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("the grammar check process died; the next check starts a new one")
            self._end_process()
            raise GrammarNotChecked(NOT_CHECKED) from error

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
