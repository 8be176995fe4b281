"""How many answers of replicas were compared, and which replicas were wrong."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class AuditCounts:
    """Changed by `frontend.audits` only. Counters never decrease."""

    num_compared: int = 0  # requests with at least two answers
    num_left_out: int = 0  # chosen, but there was no other replica, or too many audits
    num_wrong: Counter[str] = field(default_factory=Counter)  # by replica: requests that it answered wrongly
