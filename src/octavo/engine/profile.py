"""Record the steps of an engine as a Chrome trace: open the file in ui.perfetto.dev or chrome://tracing.

    engine   | step 17                                  | step 18 ...
             | schedule |     execute      | results    |
    slot 0              | prefill 128 @ 0  |
    slot 1              | decode @ 77      |

The file is a list of events without the closing bracket, which the format allows. Each step is written when
it is done, so the trace survives if the engine is killed. The next engine appends to the same file.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from octavo.engine.core import Execute
from octavo.link.profile_window import ProfileWindow
from octavo.plan import StepPlan, StepResult
from octavo.protocol import EngineStats, KernelTimes

logger = logging.getLogger(__name__)

ENGINE_TRACK = 0  # slot s has track s + 1
MICROSECONDS = 1e6


class Profile:
    """Owned by the engine's thread. Has no cost after the end of the window."""

    def __init__(self, window: ProfileWindow, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = Path(window.path).open("ab")  # noqa: SIM115 (closed when the window is over)
        self._seconds = window.seconds
        self._clock = clock
        self._ends: float | None = None
        self._pid = os.getpid()
        self._plan: StepPlan | None = None
        self._executed = (0.0, 0.0)
        self._kernels: KernelTimes | None = None
        self._named: set[int] = set()  # tracks whose name is written

    @classmethod
    def open(cls, window: ProfileWindow | None) -> Self | None:
        return None if window is None else cls(window)

    @property
    def is_over(self) -> bool:
        return self._file.closed

    def around(self, execute: Execute) -> Execute:
        def execute_recorded(plan: StepPlan) -> StepResult:
            started = self._clock()
            result = execute(plan)
            self._plan, self._executed = plan, (started, self._clock())
            return result

        return execute_recorded

    def record_step(
        self, started: float, ended: float, stats: EngineStats, kernels: KernelTimes | None
    ) -> None:
        """Write a step whose execution `around` has timed. `kernels` is the total of all steps so far."""
        if self.is_over or self._plan is None:
            return
        if self._ends is None:
            self._ends = started + self._seconds
        plan, (execute_started, execute_ended) = self._plan, self._executed
        events = [
            self._span(ENGINE_TRACK, f"step {plan.step}", started, ended, _contents(plan)),
            self._span(ENGINE_TRACK, "schedule", started, execute_started),
            self._span(
                ENGINE_TRACK, "execute", execute_started, execute_ended, self._kernels_of_step(kernels)
            ),
            self._span(ENGINE_TRACK, "results", execute_ended, ended),
            self._counter("requests", ended, running=stats.num_running, waiting=stats.num_waiting),
            self._counter("blocks", ended, free=stats.blocks_free, cached=stats.blocks_cached),
        ]
        for piece in plan.slices:
            kind = f"prefill {len(piece.token_ids)}" if len(piece.token_ids) > 1 else "decode"
            name = f"{kind} @ {piece.start}"
            events.append(self._span(piece.slot + 1, name, execute_started, execute_ended))
        self._write(events)
        if ended >= self._ends:
            self._file.close()

    def _kernels_of_step(self, now: KernelTimes | None) -> dict[str, float]:
        """Return milliseconds by kind of kernel, summed over the hundreds of calls in a step."""
        before, self._kernels = self._kernels, now
        if now is None or before is None:
            return {}
        step = now - before
        return {kind: round(1e3 * getattr(step, kind).seconds, 3) for kind in step.__struct_fields__}

    def _write(self, events: list[dict[str, Any]]) -> None:
        named = [self._name_of(event["tid"]) for event in events if event["tid"] not in self._named]
        self._named.update([event["tid"] for event in events])
        lines = [msgspec.json.encode(event) + b",\n" for event in (*named, *events)]
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
        except OSError as error:  # e.g. a full disk; a trace must not fail a request
            logger.warning("stopped writing the profile: %s", error)
            with contextlib.suppress(OSError):
                self._file.close()

    def _name_of(self, track: int) -> dict[str, Any]:
        name = "engine" if track == ENGINE_TRACK else f"slot {track - 1}"
        event = {"ph": "M", "name": "thread_name", "pid": self._pid, "tid": track}
        return event | {"args": {"name": name}}

    def _span(
        self, track: int, name: str, started: float, ended: float, contents: dict[str, float] | None = None
    ) -> dict[str, Any]:
        event = {"ph": "X", "name": name, "pid": self._pid, "tid": track}
        times = {"ts": MICROSECONDS * started, "dur": MICROSECONDS * (ended - started)}
        return event | times | ({"args": contents} if contents else {})

    def _counter(self, name: str, at: float, **values: float) -> dict[str, Any]:
        event = {"ph": "C", "name": name, "pid": self._pid, "tid": ENGINE_TRACK}
        return event | {"ts": MICROSECONDS * at, "args": values}


def _contents(plan: StepPlan) -> dict[str, float]:
    tokens = sum([len(piece.token_ids) for piece in plan.slices])
    return {"sequences": len(plan.slices), "tokens": tokens}
