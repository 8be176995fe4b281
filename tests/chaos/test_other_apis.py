"""An engine is killed under streams of every API: all of them end as they would have without the kill."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from data.json_types import Json, JsonObject
from patience import HANG_SECONDS
from server.process import Server

LENGTH = 120
# A long answer: no shorter one conforms to the schema.
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": f"^[a-z]{{{LENGTH}}}$"}},
    "required": ["a"],
    "additionalProperties": False,
}
MESSAGES, RESPONSES, OLLAMA = "/v1/messages", "/v1/responses", "/api/chat"
LAST = {"message_stop", "response.completed", "response.incomplete"}
TOKENS = 200


def requests() -> list[tuple[str, JsonObject]]:
    """Return requests of each API: free text, and long answers that conform to a schema."""
    given: JsonObject = {"model": "tiny", "stream": True}
    chat = given | {"messages": [{"role": "user", "content": "hello"}]}
    text = {"type": "json_schema", "name": "a", "schema": SCHEMA}
    output = {"type": "json_schema", "schema": SCHEMA}
    bodies: list[tuple[str, JsonObject]] = []
    for seed in range(2):
        sampled = {"seed": seed, "temperature": 1.0}
        message = chat | sampled | {"max_tokens": TOKENS}
        response = given | sampled | {"input": "hello", "max_output_tokens": TOKENS}
        line = chat | {"options": sampled | {"num_predict": TOKENS}}
        bodies += [(MESSAGES, message), (MESSAGES, message | {"output_config": {"format": output}})]
        bodies += [(RESPONSES, response), (RESPONSES, response | {"text": {"format": text}})]
        bodies += [(OLLAMA, line), (OLLAMA, line | {"format": SCHEMA})]
    return bodies


class ReadStream:
    """A stream that a thread reads to its end."""

    def __init__(self, server: Server, path: str, body: JsonObject) -> None:
        self.path = path
        self.content = b""
        self.status = 0
        self.has_ended = False
        self._thread = threading.Thread(target=self._read, args=(server.url + path, body))
        self._thread.start()

    def _read(self, url: str, body: JsonObject) -> None:
        try:
            with httpx.stream("POST", url, json=body, timeout=HANG_SECONDS) as response:
                self.status = response.status_code
                for data in response.iter_raw():
                    self.content += data
        finally:
            self.has_ended = True

    def begun(self) -> bool:
        """Whether some of the answer's text has arrived."""
        return self.has_ended or re.search(rb'delta"|"done":false', self.content) is not None

    def ended(self) -> list[Json]:
        self._thread.join(HANG_SECONDS)
        assert self.has_ended
        assert self.status == 200, self.content
        return list(joined(reproducible(json.loads(data)) for data in contents(self.path, self.content)))


def contents(path: str, content: bytes) -> Iterator[bytes]:
    """Yield the JSON of each event or line, except pings."""
    if path == OLLAMA:
        yield from content.removesuffix(b"\n").split(b"\n")
        return
    assert content.endswith(b"\n\n")
    seen = 0
    for event in content.split(b"\n\n")[:-1]:
        name, data = event.split(b"\n")
        seen += name == b"event: response.in_progress"  # sent again as a ping
        if name != b"event: ping" and not (name == b"event: response.in_progress" and seen > 1):
            yield data.removeprefix(b"data: ")


def reproducible(value: Json) -> Json:
    """Remove ids, times and numbers of events, and the part of the prompt that came from the cache."""
    if isinstance(value, list):
        return [reproducible(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "cache_read_input_tokens" in value:
        value = value | {"input_tokens": value["input_tokens"] + value["cache_read_input_tokens"]}
    return {
        name: reproducible(item)
        for name, item in value.items()
        if not re.fullmatch(
            r"id|\w+_id|\w+_at|\w+_duration|sequence_number|cached_tokens|cache_\w+_tokens", name
        )
    }


def joined(events: Iterator[Json]) -> Iterator[Json]:
    """Join adjacent pieces of text: how text is divided depends on how fast it is read."""
    last: Json = None
    for event in events:
        before, piece = None if last is None else _piece(last), _piece(event)
        if before is not None and piece is not None:
            (holder, name), (other, _) = before, piece
            holder[name] += other[name]
            continue
        if last is not None:
            yield last
        last = event
    yield last


def _piece(event: JsonObject) -> tuple[JsonObject, str] | None:
    """Return where the text of an event is; None if it is not only a piece of text."""
    if event.get("done") is False:
        return event["message"], "content"
    if event.get("type") == "content_block_delta":
        return event["delta"], "text"
    return (event, "delta") if event.get("type") == "response.output_text.delta" else None


@pytest.fixture(scope="module")
def served(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--kv-memory", "4MiB", "--served-model-name", "tiny")
    running = Server(tmp_path_factory.mktemp("other-apis"), tiny_checkpoint, *flags)
    try:
        yield running.wait_until_ready()
        assert "Traceback" not in running.log, running.log
    finally:
        running.stop()


def begin(server: Server) -> list[ReadStream]:
    return [ReadStream(server, path, body) for path, body in requests()]


def wait_until_begun(streams: list[ReadStream]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not all(stream.begun() for stream in streams):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_streams_of_every_api_outlive_the_engine(served: Server) -> None:
    plain = [stream.ended() for stream in begin(served)]
    for (path, _), events in zip(requests(), plain, strict=True):
        assert events[-1].get("done") or events[-1]["type"] in LAST, (path, events[-1])
    killed_in: set[str] = set()  # the APIs whose streams were not complete at a kill
    deadline = time.monotonic() + HANG_SECONDS
    while killed_in != {MESSAGES, RESPONSES, OLLAMA}:
        assert time.monotonic() < deadline, killed_in
        streams = begin(served)
        wait_until_begun(streams)
        old = served.engine_pid
        assert old is not None
        os.kill(old, signal.SIGSTOP)  # so that no stream ends between the look and the kill
        killed_in |= {stream.path for stream in streams if not stream.has_ended}
        os.kill(old, signal.SIGKILL)
        assert [stream.ended() for stream in streams] == plain
        assert served.engine_pid != old
