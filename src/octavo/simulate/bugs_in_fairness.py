"""Bugs to plant in the accounts of tenants and in their order."""

from octavo.fairness.accounts import Accounts
from octavo.schedule.tenant_queues import TenantQueues
from octavo.simulate.planted_bug import PlantedBug

FAIRNESS_BUGS = (
    PlantedBug("the weight of a tenant is ignored", TenantQueues, "charge", " / account.weight", ""),
    PlantedBug(
        "tokens computed again are charged again",
        TenantQueues,
        "charge",
        "(charged if charged > start else start)",
        "start",
    ),
    PlantedBug(
        "only the last token of a slice is charged",
        TenantQueues,
        "charge",
        "account.used += (end - (charged if charged > start else start))",
        "account.used += 1",
    ),
    PlantedBug(
        "an inactive tenant saves up service",
        Accounts,
        "enter",
        "account.used = max(account.used, self._floor)",
        "pass",
    ),
    PlantedBug(
        "a pause clears the account",
        Accounts,
        "enter",
        "account.used = max(account.used, self._floor)",
        "account.used = self._floor",
    ),
    PlantedBug(
        "a new tenant starts at zero", Accounts, "enter", "Account(name, self._floor)", "Account(name, 0.0)"
    ),
    PlantedBug(
        "the tenant that has received most sets the floor",
        TenantQueues,
        "sort",
        "self._accounts.note_min(order[0].account.used)",
        "self._accounts.note_min(order[-1].account.used)",
    ),
    PlantedBug(
        "the order of tenants is not updated",
        TenantQueues,
        "sort",
        "order.sort(key=_used)  # nearly sorted already; ties keep their order",
        "pass",
    ),
    PlantedBug("the rank does not order tenants", TenantQueues, "sort", "order.sort(key=_rank)", "pass"),
    PlantedBug(
        "ranks are counted by queue, not by sequence",
        TenantQueues,
        "remove",
        "self._num_ranked -= request.rank != 0",
        "self._num_ranked -= request.rank",
    ),
    PlantedBug(
        "a priority crosses tenants",
        TenantQueues,
        "victims",
        "account, outranks = queue.account, queue.rank > own.rank",
        "account, outranks = queue.account, queue.rank > own.rank or any(\n"
        "            other.request.priority > head.request.priority for other in queue.running\n"
        "        )",
    ),
    PlantedBug(
        "a tenant below its share takes no slots",
        TenantQueues,
        "_is_below_share",
        "account.num_served + 1 <= self._share(account)",
        "False",
    ),
    PlantedBug(
        "a new tenant takes no slot from a flood",
        TenantQueues,
        "_is_below_share",
        "account.num_served == 0 or account.num_served + 1",
        "account.num_served + 1",
    ),
    PlantedBug(
        "a tenant loses slots of its share",
        TenantQueues,
        "_is_above_share",
        "account.num_served - num_others - 1 >=",
        "account.num_served - num_others >=",
    ),
    PlantedBug(
        "a tenant loses its only slot",
        TenantQueues,
        "_is_above_share",
        "account.num_served - num_others - 1 >= self._share(account)",
        "account.num_served - num_others - 1 >= int(self._share(account))",
    ),
    PlantedBug(
        "the weight of a finished tenant is not returned",
        Accounts,
        "leave",
        "self.total_weight = self.total_weight - account.weight if self._num_active else 0.0",
        "pass",
    ),
    PlantedBug(
        "a released slot still counts for its tenant",
        TenantQueues,
        "stop",
        "queue.account.num_served -= 1",
        "pass",
    ),
    PlantedBug(
        "tenants with several slots are miscounted",
        TenantQueues,
        "stop",
        "self._num_several -= queue.account.num_served == 2",
        "self._num_several -= queue.account.num_served <= 2",
    ),
)
