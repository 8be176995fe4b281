"""Violations of the invariants, the log of actions, and counts."""

import json
import time
from collections import Counter, deque
from collections.abc import Container
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TextIO

from data.json_types import Json

MAX_VIOLATIONS = 20
NUM_LAST_ACTIONS = 25


class Invariant(IntEnum):
    ENDS_AS_DOCUMENTED = 1
    EQUALS_SOLO_RUN = 2
    GETS_ITS_SHARE = 3
    RETURNS_TO_BASELINE = 4
    NO_SERVER_ERROR = 5
    NO_OTHER_CONNECTION = 6


@dataclass(frozen=True)
class Violation:
    invariant: Invariant
    seconds: float  # since the start of the run
    text: str

    def __str__(self) -> str:
        name = self.invariant.name.lower().replace("_", " ")
        return f"invariant {self.invariant.value} ({name}) at {self.seconds:.1f} s: {self.text}"


class Findings:
    """Owned by one event loop."""

    def __init__(self, log_path: Path) -> None:
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.last_actions: deque[str] = deque(maxlen=NUM_LAST_ACTIONS)
        self.last_violation_actions: list[str] = []  # before the first violation
        self._began = time.monotonic()
        self._log: TextIO = log_path.open("w", buffering=1)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_full(self) -> bool:
        return len(self.violations) >= MAX_VIOLATIONS

    def has(self, invariants: Container[Invariant]) -> bool:
        """Return whether one of these invariants was violated."""
        return any(violation.invariant in invariants for violation in self.violations)

    def violate(self, invariant: Invariant, text: str) -> None:
        if self.is_full:
            return
        if not self.violations:
            self.last_violation_actions = list(self.last_actions)
        violation = Violation(invariant, self.seconds, text)
        self.violations.append(violation)
        self._write({"violation": str(violation)})
        print(f"violation of {violation}", flush=True)

    def act(self, actor: str, number: int, action: str, /, **details: Json) -> None:
        """Log an action before it starts. Details are drawn from the seed, so they are reproducible."""
        self.counts[action] += 1
        shown = ", ".join(f"{name}={value}" for name, value in details.items())
        self.last_actions.append(f"{self.seconds:8.2f} {actor} {number} {action}({shown})")
        self._write({"actor": actor, "number": number, "action": action, "details": details})

    def close(self) -> None:
        self._log.close()

    def _write(self, entry: Json) -> None:
        self._log.write(json.dumps({"seconds": round(self.seconds, 3)} | entry, default=str) + "\n")
