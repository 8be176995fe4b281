"""Unit tests of small parts of the server."""

import asyncio
import json
import socket
from pathlib import Path

import msgspec
import pytest

from octavo.checkpoint import open_checkpoint
from octavo.config import ServerOptions
from octavo.errors import ConfigError
from octavo.fairness.tenant import ONLY_TENANT
from octavo.protocol import LOGPROB_FLOOR, SamplingParams, TokenLogprob
from octavo.server.admission import DEFAULT_RETRY_AFTER, HALF_LIFE, MAX_RETRY_AFTER, Admission
from octavo.server.http.errors import ApiError
from octavo.server.http.keys import Keys
from octavo.server.http.listener import EarlyAnswers
from octavo.server.openai.logprobs import LegacyLogprobs, chat_logprobs, prompt_logprobs
from octavo.server.openai.params import chat_params, completion_params
from octavo.server.openai.response import ChunkFrame
from octavo.server.openai.schema import ChatRequest, CompletionRequest
from octavo.text.tokenizer import Tokenizer

MINUS_INFINITY = float("-inf")


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Tokenizer:
    return Tokenizer(open_checkpoint(str(tiny_checkpoint)).text)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_retry_after_follows_the_throughput_of_the_queue() -> None:
    clock = Clock()
    admission = Admission(100, 10_000, clock)
    admission.enter(ONLY_TENANT, 100, 100)
    assert admission.retry_after(ONLY_TENANT) == DEFAULT_RETRY_AFTER  # nothing has moved yet
    for _ in range(200):  # ten a second, for long enough
        clock.now += 0.1
        admission.leave(ONLY_TENANT, 1, 1)
        admission.enter(ONLY_TENANT, 1, 1)
        assert admission.retry_after(ONLY_TENANT) == pytest.approx(
            5, rel=0.01
        )  # half of the queue, from the first on
    admission.leave(ONLY_TENANT, 100, 100)
    clock.now += 1000  # an empty queue gives no information
    admission.enter(ONLY_TENANT, 100, 100)
    assert admission.retry_after(ONLY_TENANT) < 5
    clock.now += 10 * HALF_LIFE  # from now on nothing moves
    assert admission.retry_after(ONLY_TENANT) == MAX_RETRY_AFTER
    with pytest.raises(ApiError) as refused:
        admission.check_queue(ONLY_TENANT)
    assert refused.value.status == 429
    admission.leave(ONLY_TENANT, 100, 100)
    admission.check_queue(ONLY_TENANT)
    assert (admission.num_sequences, admission.num_tokens, admission.retry_after(ONLY_TENANT)) == (0, 0, 0.5)


def test_json_has_no_infinity(tokenizer: Tokenizer) -> None:
    score = TokenLogprob(5, MINUS_INFINITY, ((6, -0.5), (7, MINUS_INFINITY)))
    legacy = LegacyLogprobs(tokenizer, skip_special_tokens=True)
    for shown in (
        chat_logprobs(tokenizer, [score]),
        prompt_logprobs(tokenizer, [score]),
        legacy.of_answer([score]),
        legacy.of_prompt([1, 5], [score]),
    ):
        text = msgspec.json.encode(shown)
        assert str(LOGPROB_FLOOR).encode() in text
        json.loads(text, parse_constant=pytest.fail)
        assert b"null" not in text.replace(b"[null", b"").replace(b'"rank":null', b"").replace(
            b'"refusal":null', b""
        )


def test_tokens_of_a_split_character_stay_separate(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("é€")
    assert len(ids) == 5
    scores = [TokenLogprob(i, -1.0, tuple((j, -1.0) for j in ids)) for i in ids]
    legacy = LegacyLogprobs(tokenizer, skip_special_tokens=True)
    shown = json.loads(msgspec.json.encode(legacy.of_answer(scores)))
    assert shown["tokens"] == [f"bytes:\\x{byte:02x}" for byte in "é€".encode()]
    assert all(len(top) == 5 for top in shown["top_logprobs"])
    assert shown["text_offset"] == [0, 0, 1, 1, 1]


def test_omitted_fields_default_to_the_checkpoints_recommendation() -> None:
    defaults = SamplingParams(temperature=0.6, top_k=20, repetition_penalty=1.1)
    chat = ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}]})
    assert chat_params(chat, defaults) == defaults
    given = ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "top_k": -1}
    )
    assert chat_params(given, defaults).temperature == 0
    assert chat_params(given, defaults).top_k == 0
    assert completion_params(CompletionRequest.model_validate({"prompt": "x"}), defaults).max_tokens == 16


def test_key_files(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    for content in ("", "# nothing\n", "a b c\n", "\n\n"):
        path.write_text(content)
        with pytest.raises(ConfigError, match="api_key_file"):
            Keys.from_options(ServerOptions(api_key_file=str(path)))
    path.write_text("# ours\n\nalice  the-key-a\nthe-key-b\n")
    keys = Keys.from_options(ServerOptions(api_key_file=str(path), api_key="key-c"))

    def name_of(authorization: bytes) -> str | None:
        return name_in((b"authorization", authorization))

    def name_in(*headers: tuple[bytes, bytes]) -> str | None:
        key = keys.identify([(b"accept", b"Bearer key-c"), *headers])
        return None if key is None else key.tenant.name

    assert name_of(b"Bearer the-key-a") == "alice"
    assert name_of(b"bearer the-key-b") not in (None, "", "alice", "the-key-b")
    assert name_of(b"Bearer key-c") not in (None, "", name_of(b"Bearer the-key-b"))
    assert name_of(b"Bearer alice") is None
    alice, other = (b"x-api-key", b"the-key-a"), (b"x-api-key", b"the-key-b")
    assert name_in(alice) == name_in(alice, (b"authorization", b"Bearer the-key-a")) == "alice"
    assert name_in(alice, (b"authorization", b"Bearer of another server")) == "alice"
    assert name_in((b"x-api-key", b"Bearer the-key-a")) is None
    assert name_in(other, (b"authorization", b"Bearer the-key-a")) is None  # two different keys
    assert name_in(alice, alice) is None


def test_answers_before_the_application_is_imported() -> None:
    async def ask(port: int, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        early = await EarlyAnswers.start(listener)
        assert (await ask(port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
        posted = await ask(port, b"POST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
        assert posted.startswith(b"HTTP/1.1 503")
        assert json.loads(posted.partition(b"\r\n\r\n")[2])["error"]["code"] == "loading"
        ready = await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert json.loads(ready.partition(b"\r\n\r\n")[2]) == {"status": "starting", "phase": "importing"}
        assert await ask(port, b"\r\n\r\n") == b""
        early.close()
        listener.close()

    asyncio.run(main())


@pytest.mark.parametrize("has_usage", [False, True])
def test_a_chunk_equals_the_json_of_the_whole_object(has_usage: bool) -> None:
    frame = ChunkFrame({"id": "x", "model": "ü"}, has_usage=has_usage)
    head = {"id": "x", "model": "ü"}

    def content(chunk: bytes) -> object:
        assert chunk.startswith(b"data: ")
        assert chunk.endswith(b"\n\n")
        return json.loads(chunk[6:])

    null = {"usage": None} if has_usage else {}
    assert content(frame.chunk(b'{"index":0}')) == head | {"choices": [{"index": 0}]} | null
    assert content(frame.chunk(b"", octavo={"a": 1})) == head | {"choices": [], "octavo": {"a": 1}} | null
    assert content(frame.chunk(b"", usage={"b": 2})) == head | {"choices": [], "usage": {"b": 2}}
