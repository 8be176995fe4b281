"""Accounts of the service that tenants have received, for weighted fair queueing.

The tenant to serve next is the active one that has received the least service per weight. A tenant is active
while it has work. Being inactive saves nothing up: a tenant that becomes active again is treated as if it had
received at least as much as the active tenant that had received least. What it received beyond that stays in
its account, so nothing is gained by pausing either.
"""

MIN_SWEEP = 256


class Account:
    """Changed by `Accounts` and its owner only."""

    __slots__ = ("name", "num_active", "num_served", "used", "weight")

    def __init__(self, name: str, used: float) -> None:
        self.name = name
        self.weight = 1.0
        self.used = used  # service divided by weight
        self.num_active = 0  # units of work, such as sequences
        self.num_served = 0  # of these, being served now


class Accounts:
    """Owned by whatever serves the tenants."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._floor = 0.0  # the least `used` of active tenants, as of the last choice
        self._num_active = 0
        self.total_weight = 0.0  # of active tenants
        self._sweep_at = MIN_SWEEP

    def __len__(self) -> int:
        return len(self._accounts)

    def enter(self, name: str, weight: float) -> Account:
        """Return the account of a tenant that has one more unit of work."""
        account = self._accounts.get(name)
        if account is None:
            self._sweep()
            account = self._accounts[name] = Account(name, self._floor)
        elif account.num_active == 0:
            account.used = max(account.used, self._floor)
        self.total_weight += weight - (account.weight if account.num_active else 0.0)
        account.weight = weight
        account.num_active += 1
        self._num_active += 1
        return account

    def leave(self, account: Account) -> None:
        account.num_active -= 1
        self._num_active -= 1
        if account.num_active == 0:
            # Exactly 0 in the end: rounding errors do not accumulate.
            self.total_weight = self.total_weight - account.weight if self._num_active else 0.0

    def charge(self, account: Account, service: float) -> None:
        account.used += service / account.weight

    def note_min(self, used: float) -> None:
        """Record the least `used` of the active tenants, which was chosen to be served next."""
        self._floor = max(self._floor, used)

    def _sweep(self) -> None:
        """Forget inactive tenants that would start at the floor anyway. O(1) amortised per new tenant."""
        if len(self._accounts) < self._sweep_at:
            return
        self._accounts = {
            name: account
            for name, account in self._accounts.items()
            if account.num_active or account.used > self._floor
        }
        self._sweep_at = max(MIN_SWEEP, 2 * len(self._accounts))
