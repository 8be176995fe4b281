"""A server on a model that says what the test wants: everything is real but the engine."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from data.engine_facts import engine_facts
from octavo.config import ServerOptions
from octavo.dialect.choose import dialect_of
from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import OutputProcessor
from octavo.frontend.service import ServiceState, Updates
from octavo.frontend.text_model import TextModel
from octavo.observe.engine_tally import EngineTally
from octavo.protocol import FinishReason, SamplingParams, Timings, TokenLogprob, TokenOutput
from octavo.server.app import build_app
from octavo.server.http.keys import Keys
from octavo.server.state import ServerState
from octavo.text.chat_template import ChatTemplate
from octavo.text.huggingface import text_assets_from_directory
from octavo.text.tokenizer import Tokenizer
from patience import HANG_SECONDS
from server.recording import recorded

FACTS = engine_facts(vocab_size=1 << 20, system_fingerprint="scripted")


def served_tokenizer(path: Path) -> TextModel:
    """The text side of a model, without the model."""
    assets = text_assets_from_directory(path)
    template = ChatTemplate(assets)
    return TextModel(
        "scripted", assets, Tokenizer(assets), template, dialect_of(template.source), SamplingParams()
    )


class ScriptedService:
    """Answers each request with the next line of the script, a token at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.state = ServiceState.READY
        self.facts = FACTS
        self.is_live = True
        self.engine_status = None
        self.num_restarts = 0
        self.tally = EngineTally()
        self.script: list[str] = []
        self.prompts: list[str] = []
        self.prepared: list[PreparedRequest] = []
        self._tokenizer = tokenizer

    async def submit(self, prepared: PreparedRequest, updates: Updates) -> Updates:
        self.prepared.append(prepared)
        self.prompts.append(prepared.prompt or "")
        processor = OutputProcessor(self._tokenizer)
        processor.open(prepared)
        for choice in range(prepared.params.n):
            for output in self._outputs(prepared, choice, self.script.pop(0)):
                processed = processor.process(output)
                if processed.delta is not None:
                    updates.put(processed.delta)
                if processed.finished is not None:
                    updates.put(processed.finished)
        return updates

    def _outputs(self, prepared: PreparedRequest, choice: int, text: str) -> Iterator[TokenOutput]:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        eos_id = self._tokenizer.eos_ids[0]
        has_logprobs = prepared.params.logprobs is not None
        scores = {
            token_id: (TokenLogprob(token_id, -0.5),) if has_logprobs else () for token_id in (*ids, eos_id)
        }
        for token_id in ids:
            yield TokenOutput(
                request_id=prepared.request_id,
                choice=choice,
                token_ids=(token_id,),
                logprobs=scores[token_id],
            )
        yield TokenOutput(
            request_id=prepared.request_id,
            choice=choice,
            token_ids=(eos_id,),
            logprobs=scores[eos_id],
            finish=FinishReason.STOP,
            timings=Timings(0.0, 0.0, 0.0),
        )

    async def abort(self, request_id: str) -> None:
        pass


class ScriptedServer:
    def __init__(self, service: ScriptedService, port: int) -> None:
        self.service = service
        self.url = f"http://127.0.0.1:{port}/v1"

    def says(self, *texts: str) -> None:
        """The answers to the next requests."""
        assert not self.service.script, "the last test did not ask for all that it wanted to hear"
        self.service.script += texts

    @property
    def last_prompt(self) -> str:
        return self.service.prompts[-1]


@contextmanager
def scripted_server(path: Path) -> Iterator[ScriptedServer]:
    """Over real HTTP, in a thread of this process."""
    model = served_tokenizer(path)
    service = ScriptedService(model.tokenizer)
    state = ServerState(ServerOptions(), model, service)  # type: ignore[arg-type]
    app = recorded(build_app(state, Keys()))
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield ScriptedServer(service, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(HANG_SECONDS)
        state.close()
