"""Which faults the attack itself caused and when, and which errors they explain."""

import time
from dataclasses import dataclass

from octavo.frontend.in_flight import MAX_REPLAYS

AFTERMATH = 5.0  # seconds after a fault in which a request may still meet its effect


@dataclass
class Fault:
    kind: str  # engine, agent, prompter, worker, checker, disk
    began: float
    ended: float | None = None  # None: in progress


class FaultLog:
    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def begin(self, kind: str) -> Fault:
        fault = Fault(kind, time.monotonic())
        self.faults.append(fault)
        return fault

    def end(self, fault: Fault) -> None:
        fault.ended = time.monotonic()

    @property
    def is_in_progress(self) -> bool:
        return any(fault.ended is None for fault in self.faults)

    def count(self, *kinds: str, since: float) -> int:
        """Return how many faults of these kinds a request that began at `since` may have met."""
        return sum(
            fault.kind in kinds and (fault.ended is None or fault.ended + AFTERMATH >= since)
            for fault in self.faults
        )

    def explain(self, label: str, since: float) -> bool:
        """Return whether a fault explains this response to a request that began at `since`."""
        status, _, code = label.partition(" ")
        if code == "prompt_not_made":  # after two attempts
            return self.count("prompter", since=since) > 1
        if code == "grammar_not_checked":  # after two attempts
            return self.count("checker", since=since) > 1
        if code == "engine_failed":  # a request that several engines died with is ended
            return self.count("engine", "disk", since=since) > MAX_REPLAYS
        # A worker that is killed repeatedly looks as if the prompt used too much memory.
        return status == "400" and not code and self.count("prompter", "worker", since=since) > 1
