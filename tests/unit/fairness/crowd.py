"""Tenants for tests, and measures of fairness."""

from collections.abc import Sequence

from octavo.fairness.tenant import Tenant


class Clock:
    """Time that passes only when a test advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tenants(*weights: float) -> list[Tenant]:
    """Return tenants named a, b, c, ... that share a server."""
    return [
        Tenant(chr(ord("a") + number), weight, weight / sum(weights)) for number, weight in enumerate(weights)
    ]


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all shares are equal, 1/n if one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
