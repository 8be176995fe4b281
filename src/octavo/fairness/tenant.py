"""A tenant: all API keys of one name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tenant:
    name: str = ""
    weight: float = 1.0
    fraction: float = 1.0  # its weight divided by the total weight of all tenants that the server knows


ONLY_TENANT = Tenant()  # of a server without keys
