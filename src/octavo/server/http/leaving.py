"""Work for a client that may leave before it is done."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from octavo.server.http.errors import ClientGone

Result = TypeVar("Result")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Raises ClientGone when the client leaves, and the work is cancelled: nothing is made for nobody."""
    working, watching = asyncio.create_task(work), asyncio.create_task(until_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        watching.cancel()


async def until_gone(receive: Receive) -> None:
    """Returns when the client has left. The body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
