"""A server whose model returns scripted answers: everything except the engine is real."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from data.engine_facts import IDLE_STATS, engine_facts
from octavo.config import ServerOptions
from octavo.dialect.choose import dialect_of
from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.intake import PreparedRequest
from octavo.frontend.text_model import TextModel
from octavo.protocol import (
    Abort,
    EngineFacts,
    EngineOutputs,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Timings,
    TokenLogprob,
    TokenOutput,
)
from octavo.server.app import build_app
from octavo.server.http.keys import Keys
from octavo.server.lifecycle import KEEP_ALIVE_SECONDS
from octavo.server.state import ServerState
from octavo.text.chat_template import ChatTemplate
from octavo.text.huggingface import text_assets_from_directory
from octavo.text.tokenizer import Tokenizer
from patience import HANG_SECONDS
from server.direct_prompter import DirectPrompter
from server.fake_replicas import FakeReplicas
from server.recording import recorded

FACTS = engine_facts(vocab_size=1 << 20, max_model_len=1 << 17, system_fingerprint="scripted")

Rule = Callable[[str], str]  # from the prompt to the answer


def served_tokenizer(path: Path) -> TextModel:
    """Return the tokenizer and template of a model, without the model."""
    assets = text_assets_from_directory(path)
    template = ChatTemplate(assets)
    return TextModel(
        "scripted", assets, Tokenizer(assets), template, dialect_of(template.source), SamplingParams()
    )


class RecordingHub(Hub):
    """Records the submitted requests."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[PreparedRequest] = []

    def submit(self, in_flight: InFlightRequest) -> None:
        self.prepared.append(in_flight.prepared)
        super().submit(in_flight)


class ScriptedChannel:
    """Answers each request with the next line of the script, or by the rule, one token at a time."""

    def __init__(self, hub: Hub, tokenizer: Tokenizer, rule: Rule | None) -> None:
        self.facts = FACTS
        self.script: list[str] = []
        self._rule = rule
        self._hub = hub
        self._tokenizer = tokenizer

    def send(self, message: GenerateRequest | Abort) -> None:
        if isinstance(message, GenerateRequest):
            outputs = EngineOutputs(tuple(self._outputs(message, self._answer(message))), IDLE_STATS)
            asyncio.get_running_loop().call_soon(self._hub.receive, "r0", outputs)

    def _answer(self, message: GenerateRequest) -> str:
        if self._rule is None:
            return self.script.pop(0)
        return self._rule(self._tokenizer.decode(message.prompt_ids, skip_special_tokens=False))

    def _outputs(self, message: GenerateRequest, text: str) -> Iterator[TokenOutput]:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        eos_id = self._tokenizer.eos_ids[0]
        has_logprobs = message.params.logprobs is not None
        scores = {
            token_id: (TokenLogprob(token_id, -0.5),) if has_logprobs else () for token_id in (*ids, eos_id)
        }
        for token_id in ids:
            yield TokenOutput(
                request_id=message.request_id,
                choice=message.choice,
                token_ids=(token_id,),
                logprobs=scores[token_id],
            )
        yield TokenOutput(
            request_id=message.request_id,
            choice=message.choice,
            token_ids=(eos_id,),
            logprobs=scores[eos_id],
            finish=FinishReason.STOP,
            timings=Timings(0.0, 0.0, 0.0),
        )


class ScriptedServer:
    def __init__(self, hub: RecordingHub, channel: ScriptedChannel, port: int) -> None:
        self.prepared = hub.prepared  # requests received so far
        self.script = channel.script
        self.url = f"http://127.0.0.1:{port}/v1"

    def says(self, *texts: str) -> None:
        """Set the answers to the next requests."""
        assert not self.script, "answers of the last test were not used up"
        self.script += texts

    @property
    def last_prompt(self) -> str:
        return self.prepared[-1].prompt or ""


@contextmanager
def scripted_server(
    path: Path, rule: Rule | None = None, names: str = "scripted"
) -> Iterator[ScriptedServer]:
    """Serve the next lines of a script or, with a rule, what it answers to a prompt."""
    model = served_tokenizer(path)
    hub = RecordingHub()
    channel = ScriptedChannel(hub, model.tokenizer, rule)
    hub.connect("r0", channel)
    with serving(model, hub, FACTS, ServerOptions(served_model_name=names)) as port:
        yield ScriptedServer(hub, channel, port)


@contextmanager
def serving(
    model: TextModel, hub: Hub, facts: EngineFacts, options: ServerOptions | None = None
) -> Iterator[int]:
    """Serve the application over HTTP in a thread of this process, and yield the port."""
    state = ServerState(
        options or ServerOptions(),
        model,
        FakeReplicas(facts, hub),  # type: ignore[arg-type]
        prompter=DirectPrompter(model),
    )
    app = recorded(build_app(state, Keys()))
    config = uvicorn.Config(
        app, port=0, log_config=None, lifespan="off", ws="none", timeout_keep_alive=KEEP_ALIVE_SECONDS
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(HANG_SECONDS)
        state.close()
