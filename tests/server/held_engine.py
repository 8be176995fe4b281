"""The application on the real hub, with an engine whose tokens a test sends one by one."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data.engine_facts import IDLE_STATS, engine_facts
from data.json_types import Json
from octavo.config import ServerOptions
from octavo.frontend.hub import Hub
from octavo.frontend.text_model import TextModel
from octavo.protocol import Abort, EngineOutputs, FinishReason, GenerateRequest, Timings, TokenOutput
from octavo.server.app import build_app
from octavo.server.http.key_source import KeySource
from octavo.server.http.keys import Keys
from octavo.server.state import ServerState
from patience import HANG_SECONDS
from server.direct_prompter import DirectPrompter
from server.exchange import Exchange
from server.fake_replicas import FakeReplicas
from server.recording import recorded

COMPLETIONS = "/v1/completions"


class HeldChannel:
    def __init__(self) -> None:
        self.facts = engine_facts(max_model_len=4096, vocab_size=300)
        self.requests: list[GenerateRequest] = []
        self.aborts: list[Abort] = []

    def send(self, message: GenerateRequest | Abort) -> None:
        if isinstance(message, Abort):
            self.aborts.append(message)
        else:
            self.requests.append(message)


class HeldBench:
    """`key_path` is a key file; without it, no key is required."""

    def __init__(self, model: TextModel, key_path: Path | None = None, **options: Any) -> None:
        self.hub, self.channel = Hub(), HeldChannel()
        self.hub.connect("r0", self.channel)
        replicas: Any = FakeReplicas(self.channel.facts, self.hub)
        self.state = ServerState(ServerOptions(**options), model, replicas, prompter=DirectPrompter(model))
        source = None if key_path is None else KeySource(ServerOptions(api_key_file=str(key_path)))
        self.app = recorded(build_app(self.state, Keys(source)))

    def ask(self, body: Json, path: str = COMPLETIONS, **headers: str) -> Exchange:
        """Send a request. Names of headers have _ for -."""
        encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return Exchange(self.app, path, body, tuple(encoded))

    async def until_asked(self, num_requests: int) -> None:
        """Wait until the engine has had this many requests."""
        await self.until(lambda: len(self.channel.requests) >= num_requests)

    def say(self, text: str, *, request: int = -1, finish: FinishReason | None = None) -> None:
        """Return the bytes of a text as tokens of a request."""
        asked = self.channel.requests[request]
        output = TokenOutput(
            request_id=asked.request_id,
            choice=asked.choice,
            token_ids=tuple(self.state.model.tokenizer.encode(text, add_special_tokens=False)),
            finish=finish,
            timings=None if finish is None else Timings(0.0, 0.0, 0.0),
        )
        self.hub.receive("r0", EngineOutputs((output,), IDLE_STATS))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while not condition():
                await asyncio.sleep(0.001)

    @property
    def is_clean(self) -> bool:
        return not (self.state.num_open or len(self.hub) or self.state.held.num_held)
