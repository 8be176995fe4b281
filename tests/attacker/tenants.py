"""The tenants of an attacked server, and its key file."""

from dataclasses import dataclass

HONEST_WEIGHTS = (1, 1, 2)  # repeated
NUM_HOSTILE = 2
MAX_STREAMS = 2  # of the limited tenant
REQUESTS_PER_MINUTE = 5  # of the metered tenant


@dataclass(frozen=True)
class TenantKey:
    name: str
    weight: int = 1
    options: str = ""  # in addition to the weight

    @property
    def key(self) -> str:
        return f"sk-{self.name}-0001"


@dataclass(frozen=True)
class Tenants:
    honest: tuple[TenantKey, ...]
    hostile: tuple[TenantKey, ...]
    flooder: TenantKey  # always sends urgent requests
    limited: TenantKey  # by max_streams
    metered: TenantKey  # by requests_per_minute
    operator: TenantKey
    expired: TenantKey

    @classmethod
    def of_number(cls, number: int) -> "Tenants":
        """Return `number` tenants that send requests: two of them are hostile, the others honest."""
        honest = [
            TenantKey(f"honest{index}", HONEST_WEIGHTS[index % len(HONEST_WEIGHTS)])
            for index in range(max(1, number - NUM_HOSTILE))
        ]
        return cls(
            honest=tuple(honest),
            hostile=tuple(TenantKey(f"hostile{index}") for index in range(NUM_HOSTILE)),
            flooder=TenantKey("flooder"),
            limited=TenantKey("limited", options=f"max_streams={MAX_STREAMS}"),
            metered=TenantKey("metered", options=f"requests_per_minute={REQUESTS_PER_MINUTE}"),
            operator=TenantKey("ops", options="role=operator"),
            expired=TenantKey("expired", options="expires=2020-01-01T00:00:00Z"),
        )

    @property
    def all(self) -> tuple[TenantKey, ...]:
        return (*self.inferring, self.operator, self.expired)

    @property
    def inferring(self) -> tuple[TenantKey, ...]:
        """The tenants for which tokens are generated."""
        return (*self.honest, *self.hostile, self.flooder, self.limited, self.metered)

    @property
    def total_weight(self) -> int:
        return sum(tenant.weight for tenant in self.all)

    @property
    def inferring_weight(self) -> int:
        return sum(tenant.weight for tenant in self.inferring)

    @property
    def key_file(self) -> str:
        lines = [f"{one.name} {one.key} weight={one.weight} {one.options}".rstrip() for one in self.all]
        return "\n".join(lines) + "\n"
