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
def test_a_line_tells_what_the_answer_told(
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


def test_a_line_for_every_request_and_no_secret_in_any(
    run_null: RunNull, caplog: pytest.LogCaptureFixture
) -> None:
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
            told = record.getMessage() + repr(getattr(record, "fields", ""))
            assert SECRET not in told
            assert "SECRET-KEY" not in told

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


def test_probes_are_quiet(run_null: RunNull, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo")

    async def test(bench: Bench) -> None:
        for path in ("/livez", "/readyz", "/metrics"):
            await bench.ask(path, None).done()
        assert lines_of(caplog) == []

    run_null(test)


def test_nothing_is_logged_for_a_token(run_null: RunNull, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def test(bench: Bench) -> None:
        numbers = []
        for max_tokens in (2, 40):
            caplog.clear()
            await bench.answer(prompt="x", max_tokens=max_tokens, stream=True)
            numbers.append(len([one for one in caplog.records if one.name.startswith("octavo")]))
        assert numbers == [1, 1]

    run_null(test)


def test_a_span_goes_on_with_the_clients_trace(run_null: RunNull) -> None:
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
        told: JsonObject = dict(span.attributes)
        assert told["octavo.request_id"] == asked.headers["x-request-id"]
        assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (3, 4)
        assert told["gen_ai.response.finish_reasons"] == ("length",)
        assert 0 < told["gen_ai.latency.time_to_first_token"] < told["gen_ai.latency.e2e"]
        assert span.start_time is not None
        assert span.end_time is not None
        assert told["gen_ai.latency.e2e"] == pytest.approx((span.end_time - span.start_time) / 1e9, abs=1e-6)
        assert refused.attributes["http.response.status_code"] == 404
        assert refused.attributes["error.type"] == "model_not_found"
        assert refused.parent is probe.parent is None

    run_null(test)


def test_a_traced_request_that_ends_with_nobody_there_is_an_error() -> None:
    class Told:
        def tell(self, name: str, **keywords: object) -> None:
            self.name, self.keywords = name, keywords

        def close(self) -> None: ...

    from octavo.observe.request_metrics import RequestMetrics

    told = Told()
    RequestRecord("req_1", RequestMetrics()).close({"method": "BREW", "headers": []}, told)
    assert told.name == "other other"
    assert told.keywords["is_error"]


def test_a_server_with_every_line_for_machines_a_collector_that_is_away_and_a_profile(
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
    (told,) = [line for line in lines if line.get("route") == COMPLETIONS]
    assert told["request_id"] == answer.headers["x-request-id"]
    assert told["completion_tokens"] == 3
    assert {line["process"] for line in lines} == {"octavo", "octavo engine"}
    assert SECRET not in server.log
    # Engines are killed, not closed: what is in the file is there without its last bracket.
    events = json.loads(trace.read_text().rstrip(",\n") + "]")
    drawn = [event["name"] for event in events if event["name"].startswith(("prefill", "decode"))]
    assert [name.split()[0] for name in drawn] == ["prefill", "decode", "decode"]
