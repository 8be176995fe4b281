"""The outermost middleware: request ids and records, the Host check, and a response for every exception."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.error_responses import id_headers, respond_with
from octavo.server.http.connection import ARRIVAL, OWNER, PROBES_ONLY
from octavo.server.http.connection_owner import ConnectionOwner
from octavo.server.http.errors import ClientDisconnected, as_api_error, unavailable
from octavo.server.http.hosts import Hosts
from octavo.server.http.keys import Keys
from octavo.server.key_limits import KeyedRequest
from octavo.server.operate.record import PROBE_ROUTES, RequestRecord
from octavo.server.state import ServerState


class Boundary:
    def __init__(self, app: ASGIApp, state: ServerState, keys: Keys, hosts: Hosts) -> None:
        self._app = app
        self._state = state
        self._keys = keys
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = f"req_{secrets.token_hex(12)}"
        keyed = KeyedRequest(self._keys.accounts.other_errors if self._keys.is_required else None)
        record = RequestRecord(request_id, self._state.metrics, keyed)
        holding = self._state.held.open()
        arrival = scope.get(ARRIVAL, time.monotonic())
        scope.setdefault("state", {}).update(record=record, keyed=keyed, holding=holding, arrival=arrival)

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                if 400 <= message["status"] < 500 and keyed.errors is not None:
                    await _wait(keyed.errors.delay(), scope.get(OWNER))
                message["headers"] = [*message.get("headers", ()), *id_headers(scope, request_id)]
            await send(message)

        try:
            if scope.get(PROBES_ONLY) and scope["path"] not in PROBE_ROUTES:
                raise unavailable("too many connections", code="too_many_connections")
            self._hosts.check(scope)
            await self._app(scope, receive, send_with_id)
        except ClientDisconnected:
            pass
        except Exception as error:
            response = respond_with(as_api_error(error, request_id), scope, record)
            if record.status is None:
                await response(scope, receive, send_with_id)
        finally:
            holding.close()
            record.close(scope, self._state.tracing)
            if self._state.feed.is_watched:
                self._publish(record)

    def _publish(self, record: RequestRecord) -> None:
        finished = record.finished(self._state.model.name)
        if finished is not None:
            self._state.feed.note_finished(finished)


async def _wait(seconds: float, connection: ConnectionOwner | None) -> None:
    """Wait, but not when the connection is closed or the server stops."""
    if seconds and connection is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await connection.closed.wait()
