"""The outermost layer of the application: every request gets an id, and no exception gets out."""

import secrets
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.errors import ClientGone, as_api_error, error_response


class Boundary:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request_id = f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        has_started = False

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientGone:
            pass
        except Exception as error:
            answer = as_api_error(error)
            if not has_started:
                await error_response(answer)(scope, receive, send_with_id)
