"""Choose the replica that a request is sent to."""

import hashlib
from collections.abc import Mapping


def with_min_load(loads: Mapping[str, int], request_id: str) -> str:
    """Return the replica with the minimum load.

    A hash of the request decides between equal ones. Otherwise all front ends would choose the same one.
    """
    minimum = min(loads.values())
    return min((name for name, load in loads.items() if load == minimum), key=lambda n: _mixed(n, request_id))


def _mixed(replica: str, request_id: str) -> bytes:
    return hashlib.blake2b(f"{replica}/{request_id}".encode(), digest_size=8).digest()
