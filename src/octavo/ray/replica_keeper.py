"""Keeps one replica running on this machine, on a thread of its own."""

import logging
import threading
import time

from octavo.ray.replica_process import ReplicaProcess
from octavo.ray.spec import ReplicaSpec
from octavo.replica.report import REPORT_SECONDS, ReplicaReport

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
SILENT_AFTER = 10 * REPORT_SECONDS  # a process without a report for this time is not ready
KILLED_AFTER = 60 * REPORT_SECONDS  # one that runs and reports nothing is stuck
FIRST_DELAY = 1.0  # seconds before a process that has ended is started again; doubled each time
MAX_DELAY = 30.0
USEFUL_SECONDS = 60.0  # a process that has run for this time resets the delay
ENDING_SECONDS = 10.0  # more than its grace that a process may take to end


class ReplicaKeeper:
    """`report` and `problem` may be read by any thread. The process belongs to the keeper's thread."""

    def __init__(self, spec: ReplicaSpec, host: str, grace: float) -> None:
        self._spec = spec
        self._host = host
        self._grace = grace
        self._ending = threading.Event()
        self._process: ReplicaProcess | None = None
        self.report: ReplicaReport | None = None
        self.problem: str | None = "starting"
        self.num_starts = 0  # of processes that were not adopted
        self._thread = threading.Thread(target=self._run, name="octavo-replica", daemon=True)
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    def end(self) -> None:
        """Drain and end the process. Returns when it has ended."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        delay = FIRST_DELAY
        try:
            self._process = ReplicaProcess.adopt(self._spec)
        except Exception as error:
            logger.error("cannot adopt a replica: %s", error)
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                if self._process is None:
                    self._process = ReplicaProcess.start(self._spec, self._host)
                    self.num_starts += 1
                self._watch(self._process)
            except Exception as error:  # this thread must go on; the next start may succeed
                self._note_problem(f"cannot start `octavo replica`: {error}")
            if time.monotonic() - began > USEFUL_SECONDS:
                delay = FIRST_DELAY
            self._ending.wait(delay)
            delay = min(2 * delay, MAX_DELAY)
        if self._process is not None:  # adopted after `end` was called
            self._watch(self._process)

    def _watch(self, process: ReplicaProcess) -> None:
        """Follow the reports of a process until it ends."""
        deadline: float | None = None
        while process.poll():
            now = time.monotonic()
            silent = now - process.reported_at
            self.report = process.report if silent < SILENT_AFTER else None
            if process.report is not None:
                self.problem = None if self.report is not None else "it does not report"
            if self._ending.is_set() and deadline is None:
                process.terminate()
                deadline = now + self._grace + ENDING_SECONDS
            if silent > KILLED_AFTER or (deadline is not None and now > deadline):
                process.kill()
            time.sleep(POLL_SECONDS)
        self._note_problem("it has ended: see its log, among those of Ray on its node")
        process.remove()
        self._process = None

    def _note_problem(self, problem: str) -> None:
        logger.warning("replica of %s: %s", self._spec.fleet, problem)
        self.report, self.problem = None, problem
