"""Drain a replica: move its requests to others, over seconds."""

import asyncio
import time
from collections.abc import Callable

from octavo.frontend.hub import Hub

POLL_SECONDS = 0.02
# While a replica is drained, the others get as many requests at a time as they compute again in this time.
MOVING_SECONDS = 0.5
MAX_DRAINING_SECONDS = 60.0  # after that, all remaining requests move at once
LONELY_SECONDS = 2.0  # without another usable replica, after which one is restarted with its requests


async def drain_replica(
    hub: Hub, replica: str, lonely_seconds: float, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Move all requests to other replicas, some at a time. The engine gets no others from now on.

    Returns when they have moved or ended, when there is no other replica, when none was usable for
    `lonely_seconds`, or when `is_over` returns true, for example because the engine has ended.
    """
    began = usable_at = time.monotonic()
    while not is_over() and hub.link(replica) is not None:
        now = time.monotonic()
        if now - began > MAX_DRAINING_SECONDS:
            hub.drain(replica)
        else:
            hub.drain_some(replica, MOVING_SECONDS)
        if not hub.request_ids(replica) or hub.num_replicas == 1:
            break
        usable_at = now if hub.usable else usable_at
        if now - usable_at > lonely_seconds:
            break
        await asyncio.sleep(POLL_SECONDS)
