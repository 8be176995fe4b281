"""GET /octavo/view: live views of the engine as server-sent events, documented in docs/observability.md."""

import asyncio
import math

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from octavo.server.http.errors import invalid
from octavo.server.http.keys import require_operator
from octavo.server.http.sse import AFTER_PING, HEADERS, PING, PING_SECONDS
from octavo.server.openapi import EVENTS, failures, query
from octavo.server.operate.view_feed import Watcher
from octavo.server.state import ServerState

router = APIRouter()

INTERVAL = (0.1, 10.0)  # seconds
COUNT = (1, 1_000_000)


@router.get(
    "/octavo/view",
    openapi_extra=query(
        interval={"type": "number", "minimum": INTERVAL[0], "maximum": INTERVAL[1], "default": 0.25},
        count={"type": "integer", "minimum": COUNT[0], "maximum": COUNT[1]},
        replica={"type": "string"},
    ),
    responses={200: EVENTS, **failures(400, 403, 404, 429)},
)
async def view(request: Request) -> Response:
    require_operator(request)
    state: ServerState = request.app.state.server
    interval = _number(request, "interval", INTERVAL) or 0.25
    count = _number(request, "count", COUNT)
    if count is not None and not count.is_integer():
        raise invalid("count must be a whole number", "count")
    names = request.query_params.getlist("replica")
    if len(names) > 1:
        raise invalid("replica must be a single name", "replica")
    watcher = state.feed.open(interval, names[0] if names else None)
    return ViewStream(state, watcher, math.inf if count is None else count)


def _number(request: Request, name: str, allowed: tuple[float, float]) -> float | None:
    given = request.query_params.getlist(name)
    if not given:
        return None
    try:
        value = float(given[0])
    except ValueError:
        value = math.nan
    if len(given) > 1 or not allowed[0] <= value <= allowed[1]:
        raise invalid(f"{name} must be a single number from {allowed[0]} to {allowed[1]}", name)
    return value


class ViewStream(StreamingResponse):
    """Streams views to one watcher, and removes the watcher at the end. Does not delay a shutdown."""

    def __init__(self, state: ServerState, watcher: Watcher, count: float) -> None:
        super().__init__((), headers=HEADERS)
        self._state = state
        self._watcher = watcher
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        disconnected = asyncio.create_task(self._watch_connection(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            has_pinged = False
            while self._watcher.num_views < self._count:
                events = await self._watcher.take(PING_SECONDS)
                if events is None:
                    break
                body = (AFTER_PING if has_pinged and events else b"") + (events or PING)
                has_pinged = not events
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            disconnected.cancel()
            self._state.feed.remove(self._watcher)

    async def _watch_connection(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._watcher.disconnect()
