"""One line and one span for each request, on an engine that computes nothing."""

import json
import logging
from pathlib import Path

import pytest

from data.json_types import JsonObject
from octavo.server.operate.record import RequestRecord
from patience import HANG_SECONDS
from server.exchange import Exchange
from server.null_bench import CHAT, COMPLETIONS, Bench, RunNull
from server.process import StartServer

SECRET = "the secret words"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def lines_of(caplog: pytest.LogCaptureFixture) -> list[JsonObject]:
    return [
        record.fields  # type: ignore[attr-defined]
        for record in caplog.records
        if record.name == "octavo.server.operate.record" and record.levelno == logging.INFO
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_log_line_agrees_with_the_answer(
    run_null: RunNull, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO, "octavo")

    async def test(bench: Bench) -> None:
        body = {"prompt": [[65] * 40, [65] * 3], "max_tokens": 5, "n": 2, "stream": stream}
        asked = await bench.ask(COMPLETIONS, body).done()
        (line,) = lines_of(caplog)
        assert line["request_id"] == asked.headers["x-request-id"]
        assert (line["method"], line["route"], line["status"]) == ("POST", COMPLETIONS, 200)
        assert (line["prompt_tokens"], line["completion_tokens"]) == (43, 20)
        assert line["finish_reason"] == "length"
        assert 0 <= line["queue_seconds"] < line["seconds"]
        assert 0 < line["first_token_seconds"] < line["seconds"]
        assert line["tokens_per_second"] == pytest.approx(20 / line["seconds"], rel=0.01)
        if not stream:
            cached = json.loads(asked.content)["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert line["cached_tokens"] == cached

    run_null(test)


def test_every_request_is_logged_without_secrets(run_null: RunNull, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "octavo")

    async def test(bench: Bench) -> None:
        message = {"role": "user", "content": SECRET}
        asked = [
            Exchange(
                bench.app,
                CHAT,
                {"messages": [message], "max_tokens": 2},
                ((b"authorization", b"Bearer SECRET-KEY"),),
            ),
            bench.ask(CHAT, {"messages": [message], "max_tokens": 2, "model": SECRET}),
            bench.ask(COMPLETIONS, {"prompt": SECRET, "temperature": SECRET}),
            bench.ask(f"/{SECRET}", {"prompt": SECRET}),
        ]
        for one in asked:
            await one.done()
        by_id = {line["request_id"]: line for line in lines_of(caplog)}
        assert len(by_id) == len(lines_of(caplog)) == len(asked)
        lines = [by_id[one.headers["x-request-id"]] for one in asked]
        assert [line["status"] for line in lines] == [one.status for one in asked] == [200, 404, 400, 404]
        assert [line.get("error") for line in lines][1:3] == [
            "model_not_found",
            "invalid_request_error",
        ]
        for record in caplog.records:
            logged = record.getMessage() + repr(getattr(record, "fields", ""))
            assert SECRET not in logged
            assert "SECRET-KEY" not in logged

    run_null(test)


def test_an_error_has_its_ids(
    run_null: RunNull, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "octavo")

    async def test(bench: Bench) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("inside")

        monkeypatch.setattr(bench.hub, "submit", fail)
        asked = await bench.ask(COMPLETIONS, {"prompt": "x"}).done()
        (line,) = lines_of(caplog)
        assert (line["status"], line["error"]) == (500, "internal_error")
        assert line["error_id"] in asked.error["message"]
        (failed,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert failed.fields == {"request_id": line["request_id"], "error_id": line["error_id"]}  # type: ignore[attr-defined]
        assert failed.exc_info is not None

    run_null(test)


def test_probes_are_not_logged(run_null: RunNull, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo")

    async def test(bench: Bench) -> None:
        for path in ("/livez", "/readyz", "/metrics"):
            await bench.ask(path, None).done()
        assert lines_of(caplog) == []

    run_null(test)


def test_the_number_of_log_lines_does_not_depend_on_tokens(
    run_null: RunNull, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def test(bench: Bench) -> None:
        numbers = []
        for max_tokens in (2, 40):
            caplog.clear()
            await bench.answer(prompt="x", max_tokens=max_tokens, stream=True)
            numbers.append(len([one for one in caplog.records if one.name.startswith("octavo")]))
        assert numbers == [1, 1]

    run_null(test)


def test_a_span_continues_the_clients_trace(run_null: RunNull) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from octavo.observe.tracing import tracing_with

    async def test(bench: Bench) -> None:
        exporter = InMemorySpanExporter()
        bench.state.tracing = tracing_with(SimpleSpanProcessor(exporter))
        headers = ((b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()),)
        body = {"prompt": [65] * 3, "max_tokens": 4}
        asked = await Exchange(bench.app, COMPLETIONS, body, headers).done()
        await bench.ask(COMPLETIONS, {"prompt": "x", "model": "another"}).done()
        await Exchange(bench.app, "/livez", None, ((b"traceparent", b"nonsense"),)).done()
        span, refused, probe = exporter.get_finished_spans()
        assert (span.name, span.kind.name) == (f"POST {COMPLETIONS}", "SERVER")
        assert span.parent is not None
        assert span.attributes is not None
        assert refused.attributes is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == PARENT
        attributes: JsonObject = dict(span.attributes)
        assert attributes["octavo.request_id"] == asked.headers["x-request-id"]
        assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (3, 4)
        assert attributes["gen_ai.response.finish_reasons"] == ("length",)
        assert 0 < attributes["gen_ai.latency.time_to_first_token"] < attributes["gen_ai.latency.e2e"]
        assert span.start_time is not None
        assert span.end_time is not None
        assert attributes["gen_ai.latency.e2e"] == pytest.approx(
            (span.end_time - span.start_time) / 1e9, abs=1e-6
        )
        assert refused.attributes["http.response.status_code"] == 404
        assert refused.attributes["error.type"] == "model_not_found"
        assert refused.parent is probe.parent is None

    run_null(test)


def test_a_traced_request_without_a_response_is_an_error() -> None:
    class RecordingTracing:
        def export(self, name: str, **keywords: object) -> None:
            self.name, self.keywords = name, keywords

        def close(self) -> None: ...

    from octavo.observe.request_metrics import RequestMetrics

    tracing = RecordingTracing()
    RequestRecord("req_1", RequestMetrics()).close({"method": "BREW", "headers": []}, tracing)
    assert tracing.name == "other other"
    assert tracing.keywords["is_error"]


def test_a_server_with_json_logs_an_unreachable_collector_and_a_profile(
    start: StartServer, tmp_path: Path
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    trace = tmp_path / "trace.json"
    flags = ("--log-format", "json", "--otlp-endpoint", "http://127.0.0.1:9", "--profile", str(trace))
    server = start(*flags).wait_until_ready()
    answer = server.post(COMPLETIONS, {"prompt": SECRET, "max_tokens": 3})
    assert answer.status_code == 200
    assert "octavo:generation_tokens_total" in server.get("/metrics").text
    server.terminate()
    assert server.process.wait(HANG_SECONDS) == 0
    lines = [json.loads(line) for line in server.log.splitlines()]
    (request_line,) = [line for line in lines if line.get("route") == COMPLETIONS]
    assert request_line["request_id"] == answer.headers["x-request-id"]
    assert request_line["completion_tokens"] == 3
    assert {line["process"] for line in lines} == {"octavo", "octavo engine r0"}
    assert SECRET not in server.log
    # Engines are killed, not closed, so the file has no closing bracket.
    events = json.loads(trace.read_text().rstrip(",\n") + "]")
    drawn = [event["name"] for event in events if event["name"].startswith(("prefill", "decode"))]
    assert [name.split()[0] for name in drawn] == ["prefill", "decode", "decode"]
