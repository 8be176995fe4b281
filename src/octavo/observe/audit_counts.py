"""How many answers of replicas were compared, and which replicas were wrong."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self


@dataclass
class AuditCounts:
    """Changed by `frontend.audits` only. Counters never decrease."""

    num_compared: int = 0  # requests with at least two answers
    num_left_out: int = 0  # chosen, but there was no other replica, or too many audits
    num_wrong: Counter[str] = field(default_factory=Counter)  # by replica: requests that it answered wrongly
    num_outvoted: Counter[str] = field(default_factory=Counter)  # of them, those that two others contradict

    @classmethod
    def total(cls, counts: Iterable[Self]) -> Self:
        """Return the sums over several hubs."""
        total = cls()
        for one in counts:
            total.num_compared += one.num_compared
            total.num_left_out += one.num_left_out
            total.num_outvoted.update(one.num_outvoted)
            total.num_wrong.update(one.num_wrong)
        return total
