"""A bounded store that several tenants fill, of which each has a guaranteed part.

        |  guaranteed to tenants by weight  |  first come, first served  |
        0                            GUARANTEED * limit                limit

One tenant alone may fill everything but the unused guarantees of the others.
"""

from octavo.fairness.tenant import Tenant

GUARANTEED = 0.5  # of the limit


class SharedRoom:
    """Owned by one thread or event loop, or guarded by the owner's lock.

    While tenants take only what fits, what they use and the unused guarantees together stay within the limit.
    So a tenant's guaranteed part always fits. All amounts are whole numbers, so that this is exact.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_used = 0
        self._num_guaranteed = int(GUARANTEED * limit)  # to all tenants together
        self._used: dict[str, int] = {}  # by tenant
        self._guarantees: dict[str, int] = {}  # of tenants that use something, as of their last `take`
        self._num_covered = 0  # the part of `num_used` that is within guarantees

    def used_by(self, tenant: Tenant) -> int:
        return self._used.get(tenant.name, 0)

    def guaranteed_to(self, tenant: Tenant) -> int:
        """Return how much the tenant may always use."""
        fraction = tenant.fraction
        return int(self._num_guaranteed * fraction) if fraction < 1 else self._num_guaranteed

    def max_for(self, tenant: Tenant, limit: int | None = None) -> int:
        """Return how much the tenant may use at most, when no other tenant uses anything."""
        guaranteed = self.guaranteed_to(tenant)
        return max(guaranteed, self._limit(limit) - (self._num_guaranteed - guaranteed))

    def is_guaranteed(self, tenant: Tenant, amount: int) -> bool:
        """Return whether the tenant stays within its guaranteed part if it uses `amount` more."""
        return self.used_by(tenant) + amount <= self.guaranteed_to(tenant)

    def fits(self, tenant: Tenant, amount: int, limit: int | None = None) -> bool:
        """Return whether the tenant may use `amount` more. `limit` is a lower limit beyond its guarantee."""
        covered_of_tenant = min(self.used_by(tenant), self._guarantees.get(tenant.name, 0))
        covered_of_others = self._num_covered - covered_of_tenant
        unused_by_others = self._num_guaranteed - self.guaranteed_to(tenant) - covered_of_others
        bound = self.limit if self.is_guaranteed(tenant, amount) else self._limit(limit)
        return self.num_used + amount + max(0, unused_by_others) <= bound

    def take(self, tenant: Tenant, amount: int) -> None:
        """Use more, whether it fits or not. The caller must `give` it back."""
        self._change(tenant.name, amount, self.guaranteed_to(tenant))

    def give(self, tenant: Tenant, amount: int) -> None:
        assert self.used_by(tenant) >= amount, "more given back than taken"
        self._change(tenant.name, -amount, self._guarantees.get(tenant.name, 0))

    def _limit(self, limit: int | None) -> int:
        return self.limit if limit is None else limit

    def _change(self, name: str, amount: int, guaranteed: int) -> None:
        used = self._used.get(name, 0)
        self._num_covered -= min(used, self._guarantees.get(name, 0))
        used += amount
        self.num_used += amount
        if used:
            self._used[name], self._guarantees[name] = used, guaranteed
            self._num_covered += min(used, guaranteed)
        else:
            self._used.pop(name, None)
            self._guarantees.pop(name, None)
