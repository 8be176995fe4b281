import importlib.util
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from octavo.errors import ConfigError
from octavo.observe.tracing import check_endpoint, open_tracing


class Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.taken.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(("path", "expected"), [("", "/v1/traces"), ("/", "/v1/traces"), ("/mine", "/mine")])
def test_spans_reach_the_collector(path: str, expected: str) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        server.taken = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tracing = open_tracing(f"http://127.0.0.1:{server.server_port}{path}")
        tracing.export(
            "POST /v1/completions", begin_ns=1, end_ns=2, parent={}, is_error=False, attributes={"a": 1}
        )
        tracing.close()
        server.shutdown()
        ((taken_path, body),) = server.taken  # type: ignore[attr-defined]
        assert taken_path == expected
        assert body


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "grpc://a:4317", "http://", "x"])
def test_invalid_endpoints_are_rejected(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="give one such as http://"):
        check_endpoint(endpoint)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[otel\]'"):
        open_tracing("http://127.0.0.1:4318")


def test_the_sdk_is_not_imported_by_default() -> None:
    # FastAPI imports the API package, which sends nothing.
    program = (
        "import sys, octavo.server.lifecycle;"
        "assert not {'opentelemetry.sdk', 'opentelemetry.exporter'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
