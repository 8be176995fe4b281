"""The application on a fake engine that a test controls, so that each phase of a request can be held."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
from starlette.routing import Route

from data.engine_facts import engine_facts
from data.json_types import Json
from octavo.checkpoint import open_checkpoint
from octavo.config import ServerOptions
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import Choice, RequestOutput, StreamDelta
from octavo.frontend.supervisor import EngineState
from octavo.frontend.text_model import TextModel
from octavo.frontend.updates import Recipient
from octavo.observe.audit_counts import AuditCounts
from octavo.protocol import FailureCode, Timings
from octavo.server import answer
from octavo.server.app import build_app
from octavo.server.http.keys import Keys
from octavo.server.state import ServerState
from patience import HANG_SECONDS
from server.bench_reader import BenchReader
from server.direct_prompter import DirectPrompter
from server.exchange import Exchange
from server.fake_replicas import FakeReplicas
from server.recording import recorded

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass
class FakeHub:
    submitted: list[tuple[PreparedRequest, Recipient]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    num_unsent: int = 0
    num_moves: int = 0
    audit_counts: AuditCounts = field(default_factory=AuditCounts)
    failure: Exception | None = None

    def submit(self, in_flight: InFlightRequest) -> None:
        if self.failure is not None:
            raise self.failure
        self.submitted.append((in_flight.prepared, in_flight.recipient))

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def say(self, text: str, finish: str | None = None, error: str | None = None, request: int = -1) -> None:
        prepared, recipient = self.submitted[request]
        error_code = None if error is None else FailureCode.ENGINE_FAILED
        recipient.put(
            StreamDelta(
                request_id=prepared.name,
                choice=0,
                text=text,
                token_ids=(1,),
                finish_reason=finish,
                error=error,
                error_code=error_code,
            )
        )
        if finish is not None:
            choice = Choice(
                index=0,
                text=text,
                token_ids=(1,),
                logprobs=None,
                finish_reason=finish,
                timings=Timings(0, 0, 0),
                error=error,
                error_code=error_code,
            )
            recipient.put(
                RequestOutput(
                    request_id=prepared.name,
                    prompt=prepared.prompt,
                    prompt_ids=prepared.prompt_ids,
                    prompt_logprobs=None,
                    choices=(choice,),
                    num_cached=0,
                    seed=0,
                )
            )


class Bench:
    def __init__(self, model: TextModel, **options: str | int) -> None:
        self.hub = FakeHub()
        self.replicas = FakeReplicas(
            engine_facts(max_model_len=100_000, num_blocks=9, device="cpu", dtype="float32"), self.hub
        )
        self.prompter = DirectPrompter(model)
        self.state = ServerState(
            ServerOptions.model_validate(options),
            model,
            self.replicas,  # type: ignore[arg-type]
            prompter=self.prompter,
        )
        self.app = recorded(build_app(self.state, Keys.from_options(self.state.options)))

    def ask(self, body: Json, path: str = COMPLETIONS, *headers: tuple[bytes, bytes]) -> Exchange:
        return Exchange(self.app, path, body, headers)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while not condition():
                await asyncio.sleep(0.001)

    @property
    def is_clean(self) -> bool:
        return not (
            self.state.num_open or self.state.admission.num_sequences or self.state.admission.num_tokens
        )


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> TextModel:
    return TextModel.of_checkpoint(open_checkpoint(str(tiny_checkpoint)), "tiny")


class Run(Protocol):
    def __call__(self, test: Callable[[Bench], Awaitable[None]], **options: str | int) -> None:
        """`options` are those of the server."""


@pytest.fixture
def run(model: TextModel) -> Run:
    def run(test: Callable[[Bench], Awaitable[None]], **options: str | int) -> None:
        async def main() -> None:
            bench = Bench(model, **options)
            await test(bench)
            assert bench.is_clean
            bench.state.close()

        asyncio.run(main())

    return run


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 2])
def test_a_disconnect_aborts_the_request(run: Run, stream: bool, tokens: int) -> None:
    async def test(bench: Bench) -> None:
        asked = bench.ask({"prompt": ["ab", "cd"], "stream": stream})
        await bench.until(lambda: len(bench.hub.submitted) == 2)
        assert bench.state.admission.num_sequences == 2
        for _ in range(tokens):
            bench.hub.say("x")
            await asyncio.sleep(0.01)
        asked.disconnect()
        await asked.done()
        assert sorted(bench.hub.aborted) == sorted(one.request_id for one, _ in bench.hub.submitted)

    run(test)


def test_a_disconnect_during_tokenisation(run: Run) -> None:
    async def test(bench: Bench) -> None:
        bench.prompter.works.clear()
        asked = bench.ask({"prompt": "x"})
        await bench.until(lambda: bench.prompter.num_asked)
        asked.disconnect()
        await asked.done()
        assert (bench.prompter.num_given_up, bench.hub.submitted) == (1, [])

    run(test)


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})])
def test_a_disconnect_during_token_lookup(run: Run, path: str, body: Json) -> None:
    async def test(bench: Bench) -> None:
        bench.prompter.works.clear()
        asked = bench.ask(body, path)
        await bench.until(lambda: bench.prompter.num_asked)
        asked.disconnect()
        await asked.done()
        assert bench.prompter.num_given_up == 1

    run(test)


def test_the_deadline_includes_prompt_preparation(run: Run) -> None:
    async def test(bench: Bench) -> None:
        bench.prompter.works.clear()
        asked = await bench.ask({"prompt": "x", "timeout": 0.05}).done()
        assert (asked.status, asked.error["code"]) == (408, "deadline_exceeded")
        assert (bench.prompter.num_given_up, bench.hub.submitted) == (1, [])

    run(test)


def test_a_finished_request_is_not_aborted(run: Run) -> None:
    async def test(bench: Bench) -> None:
        asked = bench.ask({"prompt": ["ab", "cd"]})
        await bench.until(lambda: len(bench.hub.submitted) == 2)
        bench.hub.say("x", "stop", request=0)
        await bench.until(lambda: bench.state.admission.num_sequences == 1)
        bench.hub.say("y", "length", request=1)
        answer = json.loads((await asked.done()).content)
        assert [choice["text"] for choice in answer["choices"]] == ["x", "y"]
        assert bench.hub.aborted == []

    run(test)


def test_the_queue_is_bounded_in_requests(run: Run) -> None:
    async def test(bench: Bench) -> None:
        asked = [bench.ask({"prompt": "ab"}) for _ in range(2)]
        await bench.until(lambda: len(bench.hub.submitted) == 2)
        refused = await bench.ask({"prompt": "ab"}).done()
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert int(refused.headers["retry-after-ms"]) >= 500
        bench.hub.say("x", request=0)  # with its first token it leaves the queue
        await bench.until(lambda: bench.state.admission.num_sequences == 1)
        asked.append(bench.ask({"prompt": "ab"}))
        await bench.until(lambda: len(bench.hub.submitted) == 3)
        for one in asked:
            one.disconnect()
            await one.done()

    run(test, max_queued_requests=2)


def test_the_queue_is_bounded_in_tokens(run: Run) -> None:
    async def test(bench: Bench) -> None:
        never = await bench.ask({"prompt": "x" * 101}).done()
        assert never.status == 400
        asked = bench.ask({"prompt": "x" * 60})
        await bench.until(lambda: bench.hub.submitted)
        refused = await bench.ask({"prompt": "x" * 60}).done()
        assert refused.status == 429
        asked.disconnect()
        await asked.done()

    run(test, max_queued_tokens=100)


def test_a_detokenisation_failure_ends_the_stream_with_an_error(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        asked = bench.ask({"prompt": "abc", "stream": True})
        await bench.until(lambda: bench.hub.submitted)
        bench.hub.say("begun")
        bench.hub.submitted[0][1].put(RuntimeError("no text"))
        events = (await asked.done()).content.decode().strip().split("\n\n")
        assert json.loads(events[0].removeprefix("data: "))["choices"][0]["text"] == "begun"
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "internal_error"
        assert events[-1] == "data: [DONE]"
        assert "no text" in caplog.text

    run(test)


def test_a_failure_in_mid_stream_is_reported_and_ends_the_stream(run: Run) -> None:
    async def test(bench: Bench) -> None:
        asked = bench.ask({"messages": [{"role": "user", "content": "x"}], "stream": True}, CHAT)
        await bench.until(lambda: bench.hub.submitted)
        bench.hub.say("ab")
        bench.hub.say("cd")
        bench.hub.say("", "error", "the engine was restarted several times")
        events = (await asked.done()).content.decode().strip().split("\n\n")
        assert asked.status == 200
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "engine_failed"
        assert events[-1] == "data: [DONE]"
        assert len(events) == 4  # earlier output is not lost

    run(test)


def test_idle_streams_get_keep_alive_comments(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "PING_SECONDS", 0.02)

    async def test(bench: Bench) -> None:
        asked = bench.ask({"prompt": "x", "stream": True})
        await bench.until(lambda: asked.content.count(b": ping\n\n") >= 2)
        assert b"data:" not in asked.content  # must not look like a token
        assert asked.headers["content-type"].startswith("text/event-stream")
        assert asked.headers["cache-control"] == "no-cache, no-transform"
        assert asked.headers["x-accel-buffering"] == "no"
        bench.hub.say("ab", "stop")
        assert (await asked.done()).content.endswith(b"data: [DONE]\n\n")

    run(test)


def test_a_comment_does_not_hide_the_event_after_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "PING_SECONDS", 0.02)

    async def test(bench: Bench) -> None:
        asked = bench.ask({"prompt": "x", "stream": True})
        await bench.until(lambda: asked.content.count(b": ping") >= 2)
        for piece in ("first ", "second "):
            bench.hub.say(piece)
            await bench.until(lambda: asked.writes[-1] == b": ping\n\n")
        bench.hub.say("third", "stop")
        await asked.done()
        reader = BenchReader()
        for written in asked.writes:
            reader.read(written)
        assert reader.text == "first second third"

    run(test)


def test_unexpected_errors_reveal_no_details(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        bench.hub.failure = RuntimeError("secret at 0xdeadbeef")
        answer = await bench.ask({"prompt": "x"}).done()
        assert (answer.status, answer.error["type"]) == (500, "server_error")
        assert b"secret" not in answer.content
        error_id = answer.error["message"].split()[-1]
        assert error_id in caplog.text
        assert "secret" in caplog.text

    run(test)


@pytest.mark.parametrize(
    ("state", "code"), [(EngineState.STARTING, "loading"), (EngineState.FAILED, "engine_failed")]
)
def test_requests_get_503_while_there_is_no_engine(run: Run, state: EngineState, code: str) -> None:
    async def test(bench: Bench) -> None:
        bench.replicas.state, bench.replicas.facts = state, None
        bench.replicas.is_live = state is not EngineState.FAILED
        answer = await bench.ask({"prompt": "x"}).done()
        assert (answer.status, answer.error["code"]) == (503, code)
        assert int(answer.headers["retry-after"]) >= 1
        assert (await bench.ask(None, "/readyz").done()).status == 503
        assert (await bench.ask(None, "/livez").done()).status == (200 if bench.replicas.is_live else 503)

    run(test)


def test_requests_wait_while_an_engine_is_restarted(run: Run) -> None:
    async def test(bench: Bench) -> None:
        bench.replicas.state = EngineState.RESTARTING
        asked = bench.ask({"prompt": "x", "octavo": True})
        await bench.until(lambda: bench.hub.submitted)
        bench.replicas.num_restarts += 1
        bench.hub.say("a", "stop")
        answer = json.loads((await asked.done()).content)
        assert answer["octavo"]["engine_restarts"] == 1
        assert (await bench.ask(None, "/readyz").done()).status == 503

    run(test)


def test_draining(run: Run) -> None:
    async def test(bench: Bench) -> None:
        asked = bench.ask({"prompt": "x"})
        await bench.until(lambda: bench.hub.submitted)
        bench.state.is_draining = True
        refused = await bench.ask({"prompt": "x"}).done()
        assert (refused.status, refused.error["code"]) == (503, "draining")
        assert (await bench.ask(None, "/readyz").done()).status == 503
        assert (await bench.ask(None, "/livez").done()).status == 200
        bench.hub.say("a", "stop")
        assert (await asked.done()).status == 200

    run(test)


PROBES = {"/livez", "/readyz", "/healthz", "/health"}
PAGE = {"/", "/page/{name:path}"}  # static files without information about the server


def test_every_route_except_probes_and_page_requires_a_key(run: Run) -> None:
    async def test(bench: Bench) -> None:
        paths = {route.path for route in walk(bench.app.routes)}
        assert paths > PROBES | PAGE
        assert len(paths) > 10
        for path in paths:
            concrete = path.replace("{model_id:path}", "tiny")
            for method_body in (None, {"prompt": "x"}):
                asked = await bench.ask(method_body, concrete).done()
                expected = {200, 405} if path in PROBES else {200, 404, 405} if path in PAGE else {401, 405}
                assert asked.status in expected, (path, asked.status)
            statuses = [(await bench.ask(b, concrete).done()).status for b in (None, {"prompt": "x"})]
            assert path in PROBES | PAGE or 401 in statuses

    run(test, api_key="the-key")


def walk(routes: Any) -> Iterator[Route]:
    for route in routes:
        if hasattr(route, "path") and hasattr(route, "endpoint"):
            yield route
        else:
            yield from walk(getattr(route, "routes", None) or route.original_router.routes)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"authorization", b""),),
        ((b"authorization", b"Bearer"),),
        ((b"authorization", b"Bearer "),),
        ((b"authorization", b"Bearer wrong"),),
        ((b"authorization", b"Basic the-key"),),
        ((b"authorization", b"the-key"),),
        ((b"authorization", b"Bearer the-key the-key"),),
        ((b"authorization", b"Bearer \xff\xfe\xc3"),),
        ((b"authorization", b"Bearer " + b"x" * (1 << 20)),),
        ((b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer the-key")),
    ],
)
def test_invalid_keys_are_rejected(run: Run, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    async def test(bench: Bench) -> None:
        answer = await bench.ask(None, "/v1/models", *headers).done()
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"

    run(test, api_key="the-key")


def test_each_identity_has_its_own_cache(run: Run, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nalice the-key-a\nalice the-key-a2\nbob the-key-b\nthe-key-c\n")

    async def test(bench: Bench) -> None:
        salts = []
        for key, salt in (
            (b"the-key-a", ""),
            (b"the-key-a2", ""),
            (b"the-key-b", ""),
            (b"the-key-c", ""),
            (b"the-key-b", "s"),
        ):
            header = (b"authorization", b"bearer " + key)
            asked = bench.ask({"prompt": "x", "cache_salt": salt}, COMPLETIONS, header)
            number = len(bench.hub.submitted)
            await bench.until(lambda number=number: len(bench.hub.submitted) > number)  # type: ignore[misc]
            salts.append(bench.hub.submitted[-1][0].messages[0].cache_salt)
            asked.disconnect()
            await asked.done()
        assert salts[0] == salts[1]
        assert len(set(salts)) == 4
        assert not any("key-" in salt for salt in salts)

    run(test, api_key_file=str(keys))


def test_origins_are_allowed_only_if_configured(run: Run) -> None:
    origin = (b"origin", b"https://page.example")

    async def refused(bench: Bench) -> None:
        answer = await bench.ask(None, "/v1/models", origin).done()
        assert "access-control-allow-origin" not in answer.headers

    async def allowed(bench: Bench) -> None:
        answer = await bench.ask(None, "/v1/models", origin).done()
        assert answer.headers["access-control-allow-origin"] == "https://page.example"

    run(refused)
    run(allowed, cors_origins="https://other.example, https://page.example")
