"""The application on the real hub, supervisor, loop and scheduler, with a model that computes nothing."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chaos.patient_supervision import take_no_pause_for_a_fault
from data.json_types import Json
from octavo.config import ServerOptions
from octavo.fleet.router import Router
from octavo.frontend.hub import Hub
from octavo.frontend.text_model import TextModel
from octavo.link.folder import EngineSettings
from octavo.membership.local import LocalReplicas
from octavo.server.app import build_app
from octavo.server.http.keys import Keys
from octavo.server.state import ServerState
from patience import HANG_SECONDS
from server.direct_prompter import DirectPrompter
from server.exchange import Exchange
from server.recording import recorded

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STEP_SECONDS = 0.002


class Scrape:
    """Samples of one scrape of /metrics."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, *sorted(set(sample.labels.items()) - {("model_name", "tiny")})): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[f"octavo:{name}", *sorted(labels.items())]

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the samples that are not zero."""
        return {
            sample.labels[label]: sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == f"octavo:{name}" and sample.value
        }


class Bench:
    def __init__(self, hub: Hub, replicas: LocalReplicas, model: TextModel) -> None:
        self.hub = hub
        self.replicas = replicas
        self.supervisor = replicas.supervisors[0]
        self.state = ServerState(ServerOptions(), model, replicas, prompter=DirectPrompter(model))
        self.app = recorded(build_app(self.state, Keys()))

    def ask(self, path: str, body: Json) -> Exchange:
        return Exchange(self.app, path, body)

    async def answer(self, path: str = COMPLETIONS, **body: Json) -> Json:
        asked = await self.ask(path, body).done()
        return json.loads(asked.content) if not body.get("stream") else asked.content

    async def scrape(self) -> Scrape:
        return Scrape((await self.ask("/metrics", None).done()).content.decode())

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while not condition():
                await asyncio.sleep(0.002)


class RunNull(Protocol):
    def __call__(
        self, test: Callable[[Bench], Awaitable[None]], *, num_replicas: int = 1, **options: float
    ) -> None:
        """`options` are those of `octavo.simulate.null_engine`."""


async def on_null_engine(
    model: TextModel, test: Callable[[Bench], Awaitable[None]], *, num_replicas: int = 1, **options: float
) -> None:
    """`options` are those of `octavo.simulate.null_engine`."""
    engine = {"vocab_size": 260, "step_seconds": STEP_SECONDS} | options
    settings = EngineSettings(engine, log_level="warning")
    hub = Hub(Router.with_prefixes())
    replicas = LocalReplicas(settings, hub, num_replicas=num_replicas, module="octavo.simulate.null_engine")
    with pytest.MonkeyPatch.context() as patch:
        take_no_pause_for_a_fault(patch)
        replicas.start()
        try:
            for supervisor in replicas.supervisors:
                await supervisor.wait_until_ready()
            await test(Bench(hub, replicas, model))
        finally:
            await replicas.close()
