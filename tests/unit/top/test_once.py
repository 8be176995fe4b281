"""`octavo top --once` tries once; without a view it fails with the reason and advice."""

import http.server
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from octavo.cli.main import main
from octavo.cli.top import ONCE_VIEWS
from octavo.top.connection import Unavailable, ViewAddress, ViewConnection
from octavo.view import AwayEvent, Event
from patience import HANG_SECONDS
from unit.top.seen import FACTS, a_fleet, a_replica, a_view


@pytest.fixture
def dead_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Busy(http.server.BaseHTTPRequestHandler):
    status = 503

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=[429, 503])
def busy_port(request: pytest.FixtureRequest) -> Iterator[int]:
    handler = type("Handler", (Busy,), {"status": request.param})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server.server_port
        server.shutdown()


class Streaming(http.server.BaseHTTPRequestHandler):
    """Sends events, and records the paths of requests."""

    body = b""
    paths: list[str]

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


def printed(capsys: pytest.CaptureFixture[str], *events: Event, replica: str) -> str:
    """Return what `octavo top --once --replica` prints for a server that sends these events."""
    body = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events)
    paths: list[str] = []
    handler = type("Handler", (Streaming,), {"body": body, "paths": paths})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            assert main(["top", f"127.0.0.1:{server.server_port}", "--once", "--replica", replica]) == 0
        finally:
            server.shutdown()
    assert paths == [f"/octavo/view?interval=0.25&replica={replica}"]
    return capsys.readouterr().out


def test_a_snapshot_has_the_replicas_and_their_rates(capsys: pytest.CaptureFixture[str]) -> None:
    facts = msgspec.structs.replace(FACTS, replica="r1")
    views = [a_view(number) for number in range(ONCE_VIEWS)]
    fleets = [a_fleet(number, a_replica(number), a_replica(number, "r1")) for number in (1, 2)]
    shown = printed(capsys, fleets[0], facts, *views, fleets[1], a_view(9), replica="r1")
    assert "r1 of 2" in shown.splitlines()[0]
    assert "Replicas  2 of 2 ready" in shown
    (row,) = (line for line in shown.splitlines() if line.startswith("> r1"))
    assert "50 %" in row, "the load needs two events"
    assert "10 waiting" not in shown, "the view after them is not read"


@pytest.mark.parametrize(("state", "words"), [("failed", "has failed"), ("removed", "was removed")])
def test_a_snapshot_does_not_wait_for_an_engine_that_will_not_come(
    capsys: pytest.CaptureFixture[str], state: str, words: str
) -> None:
    shown = printed(
        capsys, a_fleet(1, a_replica(1), a_replica(1, "r1")), AwayEvent(state=state), replica="r1"
    )
    assert words in shown
    assert "  r1   ready" in shown or "> r1   ready" in shown


def said(port: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command, which must fail, and return its stderr."""
    assert main(["top", f"127.0.0.1:{port}", "--once"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err


def test_a_closed_port_is_reported_with_advice(dead_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(dead_port, capsys) == (
        f"error: cannot reach the server: no server at http://127.0.0.1:{dead_port}:"
        " start one with `octavo serve MODEL`\n"
    )


def test_a_busy_server_is_not_retried(busy_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    error = said(busy_port, capsys)
    assert error.startswith("error: cannot reach the server: the server ")
    assert "trying again" not in error


def test_viewers_are_notified_of_a_retry(dead_port: int) -> None:
    watching = ViewConnection(ViewAddress.of(f"127.0.0.1:{dead_port}"), None, 0.25)
    watching.start()
    news = watching.updates.get(timeout=HANG_SECONDS)
    watching.stop()
    assert isinstance(news, Unavailable)
    assert news.reason.endswith("; trying again")
