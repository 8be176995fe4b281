"""Whether a grammar can be used: found out in another process, where it can be killed.

    front end                                  octavo.grammar.check_process
    submit(spec) -> Future                     reads a line and forks; the child compiles, and the kernel
       |  one line of JSON                     ends it should it take too much time or memory
       +---------------------------------->    |
       <----------------------------------+    writes a line: what is wrong with the grammar, if anything

Nobody's step and nobody's event loop waits for that. Verdicts are kept, good and bad, in so many bytes.
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
MOST_WAITING = 256
PATIENCE = 30.0  # seconds: no verdict takes so long, not even that a grammar takes too long

LOST = "the grammar could not be checked; send the request again"
TOO_MANY = "too many grammars are waiting to be checked; send the request again later"


class Verdict(msgspec.Struct, frozen=True):
    problem: str | None = None  # None: the grammar can be used
    is_final: bool = True  # False: nothing was found out, and the next question may find it


class GrammarChecker:
    """Any thread may ask. The process is started with the first question, and again should it ever die."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the two below; never held for long
        self._verdicts: ByteBoundedLru[GrammarSpec, Verdict] = ByteBoundedLru(KNOWN_BYTES)
        self._num_waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar-check")
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None  # touched on that thread only

    def check(self, spec: GrammarSpec) -> None:
        """Raises GrammarError if the grammar cannot be used. May take as long as a verdict does."""
        self.submit(spec).result()

    def submit(self, spec: GrammarSpec) -> "Future[None]":
        """Done with the verdict; its exception is a GrammarError. For an event loop: `wrap_future`."""
        try:
            check_spec(spec)
            with self._lock:
                known = self._verdicts.get(spec)
                if known is None and self._num_waiting >= MOST_WAITING:
                    raise GrammarNotChecked(TOO_MANY)
                self._num_waiting += known is None
        except GrammarError as error:
            return _settled(error)
        if known is not None:
            return _settled(None if known.problem is None else GrammarError(known.problem))
        future = self._thread.submit(self._ask, spec)
        future.add_done_callback(self._leave)
        return future

    def close(self) -> None:
        """Who still waits for a verdict gets none."""
        if not self._is_closed:
            self._is_closed = True
            process = self._process
            if process is not None:
                process.kill()  # so that nobody goes on reading from it
            self._thread.submit(self._end_process)
            self._thread.shutdown()

    def _leave(self, _: "Future[None]") -> None:
        with self._lock:
            self._num_waiting -= 1

    # -- on the one thread -------------------------------------------------------------------------------

    def _ask(self, spec: GrammarSpec) -> None:
        with self._lock:
            verdict = self._verdicts.get(spec)  # somebody else's, since we came
        if verdict is None:
            verdict = self._fetch(spec)
            if not verdict.is_final:
                raise GrammarNotChecked(verdict.problem or LOST)
            with self._lock:
                self._verdicts.put(spec, verdict, estimated_bytes(spec))
        if verdict.problem is not None:
            raise GrammarError(verdict.problem)

    def _fetch(self, spec: GrammarSpec) -> Verdict:
        try:
            if self._is_closed:
                raise GrammarNotChecked(LOST)
            if self._process is None:
                self._process = _start_process()
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(spec) + b"\n")
            process.stdin.flush()
            # A verdict has one line, which is written at once.
            answers = select.poll()  # `select.select` knows small descriptors only
            answers.register(process.stdout, select.POLLIN)
            if not answers.poll(1000 * PATIENCE):
                process.kill()
            return msgspec.json.decode(process.stdout.readline(), type=Verdict)
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("the process that checks grammars is gone; the next question starts another")
            self._end_process()
            raise GrammarNotChecked(LOST) from error

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
        process_group=0,  # Ctrl-C is for us
    )


def _settled(error: GrammarError | None) -> "Future[None]":
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future
