"""Models, errors and probes as clients of the Anthropic API see them."""

from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import pytest

from server.anthropic_client import ASKED, RecordedAnswer, anthropic_client
from server.null_bench import Bench, RunNull
from server.process import StartServer

pytestmark = [pytest.mark.assets, pytest.mark.xdist_group("server")]


def test_models_have_the_form_of_the_api_that_the_client_speaks(
    start: StartServer,
) -> None:
    server = start("--served-model-name", "large,small,fast", "--api-key", "secret").wait_until_ready()
    client = anthropic_client(server.url, "secret")
    assert [model.id for model in client.models.list()] == ["large", "small", "fast"]
    assert [model.id for model in client.models.list(limit=1)] == ["large", "small", "fast"]
    first = client.models.list(limit=2)
    assert (first.first_id, first.last_id, first.has_more) == ("large", "small", True)
    last = client.models.list(limit=1, before_id="fast")
    assert ([model.id for model in last.data], last.has_more) == (["small"], True)
    small = client.models.retrieve("small")
    assert (small.id, small.type, small.lifecycle) == ("small", "model", "active")
    assert small.created_at.tzinfo is not None
    assert [model.id for model in server.client(api_key="secret").models.list()] == ["large", "small", "fast"]
    with pytest.raises(anthropic.BadRequestError, match="limit"):
        client.models.list(limit=0)
    check_errors(server.url, client)
    beyond = client.messages.create(
        model="small", max_tokens=9000, messages=[{"role": "user", "content": "x"}]
    )
    assert beyond.stop_reason in ("model_context_window_exceeded", "end_turn")
    client.messages.create(model="small", max_tokens=1, messages=[{"role": "user", "content": "x" * 100}])
    again = client.messages.create(
        model="small", max_tokens=1, messages=[{"role": "user", "content": "x" * 100}]
    )
    cached = again.usage.cache_read_input_tokens
    assert cached
    assert again.usage.input_tokens + cached == 103


def check_errors(url: str, client: anthropic.Anthropic) -> None:
    cases: list[tuple[type[anthropic.APIStatusError], str, Callable[[], object]]] = [
        (anthropic.NotFoundError, "not_found_error", lambda: client.models.retrieve("other")),
        (
            anthropic.AuthenticationError,
            "authentication_error",
            anthropic_client(url, "wrong").models.list,
        ),
        (
            anthropic.NotFoundError,
            "not_found_error",
            lambda: client.messages.create(**ASKED | {"model": "other"}),
        ),
        (
            anthropic.BadRequestError,
            "invalid_request_error",
            lambda: client.messages.create(**ASKED | {"model": "small", "extra_body": {"temperature": -1}}),
        ),
        (
            anthropic.BadRequestError,
            "invalid_request_error",
            lambda: client.messages.create(
                model="small", max_tokens=1, messages=[{"role": "user", "content": "x" * 600}]
            ),
        ),
    ]
    for kind, name, call in cases:
        with pytest.raises(kind) as caught:
            call()
        body: Any = caught.value.body
        assert body["error"]["type"] == name
        assert body["request_id"] == caught.value.request_id
    assert body["error"]["message"].startswith("prompt is too long: ")


def test_a_server_that_ends_is_overloaded(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        bench.state.is_draining = True
        refused = await bench.ask("/v1/messages", ASKED | {"model": "tiny"}).done()
        assert int(refused.headers["retry-after"]) >= 1
        recorded = RecordedAnswer(refused.status)
        with pytest.raises(anthropic.OverloadedError) as caught:
            recorded.body(refused.content).messages.create(**ASKED)
        assert caught.value.status_code == 529

    run_null(test)


def test_a_server_without_the_page_answers_head(start: StartServer) -> None:
    server = start("--no-page").wait_until_ready()
    assert httpx.head(f"{server.url}/").status_code == 200
    assert httpx.get(f"{server.url}/").status_code == 404
