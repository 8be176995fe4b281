"""Prompts that are slow to prepare, because they are long or because the checkpoint is hostile."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks.conftest import CONTEXT, serving
from attacks.crowds import at_once, send
from attacks.neighbour import AUTHORIZATION, MEBIBYTE, beside
from attacks.stranger import EXPANDS, LOOPS, PANICS, TEMPLATE_WORDS, write_stranger
from data.json_types import JsonObject
from server.hostile import CHAT, COMPLETIONS, check_answer
from server.process import Server

pytestmark = pytest.mark.xdist_group("attacks")

LONG_BUT_POSSIBLE = "word " * (CONTEXT // 5)
TOO_LONG = "a b c d e f g h " * (4 * MEBIBYTE // 16 - 64)


def test_prompts_that_cannot_fit_are_rejected_by_character_count(server: Server) -> None:
    bodies: list[JsonObject] = [{"prompt": TOO_LONG, "max_tokens": 1}] * 8
    bodies += [{"prompt": "a" * 4_000_000, "max_tokens": 1}] * 4
    bodies += [{"prompt": [1] * 1_000_000, "max_tokens": 1}] * 2
    with beside(server), at_once(server, bodies) as statuses:
        pass
    assert set(statuses.values()) <= {400, 429}  # 429: too many held bytes
    assert 400 in statuses.values()
    refused = server.post(COMPLETIONS, {"prompt": TOO_LONG, "max_tokens": 1}, AUTHORIZATION)
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_disconnected_clients_do_not_delay_others(server: Server) -> None:
    with beside(server):
        for _ in range(10):
            with send(server, {"prompt": LONG_BUT_POSSIBLE, "max_tokens": 1}):
                time.sleep(0.02)
        body: JsonObject = {"prompt": LONG_BUT_POSSIBLE, "max_tokens": 1}
        assert server.post(COMPLETIONS, body, AUTHORIZATION).status_code == 200


# -- a hostile checkpoint ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stranger(
    roomy_checkpoint: Path, keys: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("stranger")
    write_stranger(roomy_checkpoint, folder / "model")
    with serving(folder, folder / "model", keys) as server:
        yield server
        assert server.process.poll() is None


def check_rejected(server: Server, path: str, body: JsonObject) -> None:
    """Check that the error reveals no internals, and that the next request is answered."""
    answer = server.post(path, body, AUTHORIZATION)
    assert 400 <= answer.status_code < 500, answer.text
    check_answer(answer.status_code, answer.content, str(body)[:60])
    assert server.post(COMPLETIONS, {"prompt": "bcd", "max_tokens": 1}, AUTHORIZATION).status_code == 200


@pytest.mark.parametrize(
    ("path", "text"),
    [(COMPLETIONS, PANICS), (CHAT, PANICS), ("/tokenize", PANICS), (COMPLETIONS, EXPANDS)],
    ids=["panics", "panics in a chat", "panics when looked at", "expands"],
)
def test_tokenizers_that_break(stranger: Server, path: str, text: str) -> None:
    bodies: dict[str, JsonObject] = {
        COMPLETIONS: {"prompt": text, "max_tokens": 1},
        CHAT: {"messages": [{"role": "user", "content": text}], "max_tokens": 1},
        "/tokenize": {"prompt": text},
    }
    with beside(stranger):
        check_rejected(stranger, path, bodies[path])


@pytest.mark.parametrize("word", TEMPLATE_WORDS)
def test_templates_that_break(stranger: Server, word: str) -> None:
    body: JsonObject = {"messages": [{"role": "user", "content": word}], "max_tokens": 1}
    with beside(stranger):
        check_rejected(stranger, CHAT, body)


def test_a_tokenizer_that_loops(stranger: Server) -> None:
    """The prompt is rejected in the end. A second request keeps its deadline although it waits for the first,
    and work for disconnected clients stops."""
    forever: JsonObject = {"prompt": LOOPS, "max_tokens": 1}
    before = stranger.log.count("rejected a prompt")
    with beside(stranger):
        for _ in range(5):
            with send(stranger, forever):
                time.sleep(0.2)
        with at_once(stranger, [forever]) as statuses:
            hurried = stranger.post(COMPLETIONS, forever | {"timeout": 2}, AUTHORIZATION)
            assert hurried.status_code == 408
            assert not statuses, "the deadline waited for the request without one"
        assert statuses == {0: 400}
        check_rejected(stranger, CHAT, {"messages": [{"role": "user", "content": "raise"}]})
    assert stranger.log.count("rejected a prompt") == before + 1
