"""Anthropic's client for servers of tests, and for recorded answers without a server."""

from collections.abc import Iterator
from contextlib import contextmanager

import anthropic
import httpx2

from data.json_types import JsonObject
from server.scripted import ScriptedServer

ASKED: JsonObject = {
    "model": "scripted",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "hello"}],
}


def anthropic_client(url: str, key: str = "none") -> anthropic.Anthropic:
    """Return a client that does not try again. The client adds /v1 itself."""
    return anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)


@contextmanager
def client_of(server: ScriptedServer) -> Iterator[anthropic.Anthropic]:
    with anthropic_client(server.url) as client:
        yield client


class RecordedAnswer:
    """Answers the requests of a client, without a server. Making a client is slow, so there is one."""

    def __init__(self, status: int = 200) -> None:
        self._status = status
        self.content = b""
        self.kind = ""
        transport = httpx2.MockTransport(self._answer)
        self.client = anthropic.Anthropic(
            api_key="none", http_client=httpx2.Client(transport=transport), max_retries=0
        )

    def stream(self, content: bytes) -> anthropic.Anthropic:
        """Return a client that gets these events."""
        self.content, self.kind = content, "text/event-stream"
        return self.client

    def body(self, content: bytes) -> anthropic.Anthropic:
        """Return a client that gets this body."""
        self.content, self.kind = content, "application/json"
        return self.client

    def _answer(self, _: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(self._status, headers={"content-type": self.kind}, content=self.content)
