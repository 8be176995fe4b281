"""Requests sent directly to the application, without an HTTP server."""

import asyncio
import json

from starlette.types import ASGIApp, Message, Scope

from data.json_types import Json
from patience import HANG_SECONDS


class Exchange:
    """One request to the application. The client can disconnect at any time."""

    def __init__(
        self, app: ASGIApp, path: str, body: Json, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        self._gone = asyncio.Event()
        self._asked = False
        self._body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.content = b""
        self.writes: list[bytes] = []
        scope = {
            "type": "http",
            "method": "GET" if body is None else "POST",
            "path": path.partition("?")[0],
            "raw_path": path.partition("?")[0].encode(),
            "query_string": path.partition("?")[2].encode(),
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "server": ("test", 80),
            "client": ("test", 1),
            "headers": [(b"content-type", b"application/json"), *headers],
        }
        self.task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.content += message["body"]
            self.writes.append(message["body"])

    def disconnect(self) -> None:
        self._gone.set()

    async def done(self) -> "Exchange":
        async with asyncio.timeout(HANG_SECONDS):
            await self.task
        return self

    @property
    def error(self) -> Json:
        return json.loads(self.content)["error"]
