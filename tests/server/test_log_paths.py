"""The path in the log line of a request: the requested path if it is known, never text of a client."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from octavo.server.operate.page import read_page
from octavo.server.operate.record import MAX_PATH, UNKNOWN_PATH
from octavo.server.served_names import ServedNames
from server.null_bench import Bench
from server.test_logs import lines_of

RunNull = Callable[..., None]
ASSET = next(name for name in read_page() if name.endswith(".js"))


def shown(
    run_null: RunNull, caplog: pytest.LogCaptureFixture, path: str, model_name: str | None = None
) -> tuple[str, str]:
    """Return the path in the JSON log line, and the text of the line."""
    caplog.set_level(logging.INFO, "octavo")

    async def test(bench: Bench) -> None:
        if model_name is not None:
            bench.state.model = replace(bench.state.model, name=model_name)
            bench.state.names = ServedNames((model_name,))
        await bench.ask(path, None).done()

    run_null(test)
    (fields,) = lines_of(caplog)
    (message,) = [one.getMessage() for one in caplog.records if one.name == "octavo.server.operate.record"]
    assert message.startswith(f"GET {fields['path']} {fields['status']} ")
    return fields["path"], message


@pytest.mark.parametrize("path", ["/", f"/page/{ASSET}", "/v1/models", "/v1/models/tiny", "/openapi.json"])
def test_known_paths_are_logged(run_null: RunNull, caplog: pytest.LogCaptureFixture, path: str) -> None:
    assert shown(run_null, caplog, path)[0] == path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/page/made-up", "/page/..."),
        ("/page/made\r\nup", UNKNOWN_PATH),
        ("/page/made\x1b\r{up}", "/page/..."),
        ("/v1/models/" + "made-up" * 1000, "/v1/models/..."),
        ("/made-up", UNKNOWN_PATH),
        ("/v1/models?key=made-up", "/v1/models"),
        (f"/page/{ASSET}?key=made-up", f"/page/{ASSET}"),
    ],
)
def test_text_made_up_by_clients_is_not_logged(
    run_null: RunNull, caplog: pytest.LogCaptureFixture, path: str, words: str
) -> None:
    found, message = shown(run_null, caplog, path)
    assert found == words
    assert "made" not in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("org/a\tmodel\x1b of é", "/v1/models/org/a%09model%1B%20of%20%C3%A9"),
        ("x" * 1000, ("/v1/models/" + "x" * 1000)[:MAX_PATH] + "..."),
    ],
)
def test_logged_paths_are_quoted_and_truncated(
    run_null: RunNull, caplog: pytest.LogCaptureFixture, name: str, words: str
) -> None:
    assert shown(run_null, caplog, f"/v1/models/{name}", name)[0] == words


def test_metrics_use_one_route_for_all_page_paths(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        await bench.ask(f"/page/{ASSET}", None).done()
        await bench.ask("/page/made-up", None).done()
        routes = (await bench.scrape()).by("http_requests_total", "route")
        assert set(routes) == {"/page/{name:path}"}

    run_null(test)
