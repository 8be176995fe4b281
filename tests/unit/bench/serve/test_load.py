"""Loads against a server with known delays."""

import re

import pytest

from data.json_types import JsonObject
from octavo.bench.serve import (
    WORKLOADS,
    AtOnce,
    Bursts,
    Closed,
    Fixed,
    LoadReport,
    LogUniform,
    PromptStyle,
    Slo,
    Steady,
    Workload,
    find_target,
    run_load,
)
from octavo.bench.serve.load import Progress
from octavo.bench.serve.summary import summarise
from octavo.errors import ConfigError, OctavoError
from unit.bench.serve.fake_server import FakeServer, Piece, running

SMALL = Workload("small", "for tests", 6, AtOnce(), LogUniform(3, 20), Fixed(4))
FIRST, GAP = 0.08, 0.03


def paced(fields: JsonObject) -> list[Piece]:
    return [Piece(FIRST), *[Piece(GAP)] * (fields["max_tokens"] - 1)]


def test_measured_times_match_the_server_delays() -> None:
    """Lower bounds are exact, since nothing arrives before it is sent. Upper bounds depend on the machine."""
    with running(FakeServer(paced, cached=2)) as server:
        report = run_load(find_target(server.url), SMALL, seed=1, slo=Slo(ttft=30.0))
    summary = report.summary
    assert (summary.num_requests, summary.num_failed, summary.num_short) == (6, 0, 0)
    assert summary.completion_tokens == 6 * 4
    assert summary.prompt_tokens == sum(record.prompt_tokens for record in report.requests)
    assert summary.cached_tokens == 12
    assert summary.itl_is_per_token
    assert summary.num_within_slo == 6
    assert summary.ttft is not None
    assert summary.e2e is not None
    assert summary.itl is not None
    slack = 0.002  # inaccuracy of sleeping
    assert FIRST - slack <= summary.ttft.min <= summary.ttft.p50
    assert FIRST + 3 * GAP - 4 * slack <= summary.e2e.min <= summary.e2e.p50
    # A gap is short after a late chunk, but no chunk arrives early.
    for record in report.requests:
        for number, at in enumerate(record.chunk_times):
            assert at - record.sent_at >= FIRST + number * GAP - (number + 1) * slack
    assert summary.itl.mean > 0
    assert not any(
        " late: the machine" not in warning for warning in report.warnings
    )  # the machine may be busy


def test_reports_round_trip_through_json() -> None:
    with running(FakeServer()) as server:
        report = run_load(find_target(server.url), SMALL, seed=7, slo=Slo(itl=1.0))
    again = LoadReport.of_json(report.as_json())
    assert again == report
    assert summarise(again.requests, again.slo) == report.summary
    assert (again.seed, again.workload.arrivals, again.workload.prompt) == (7, "once", "3-20")


def test_requests_are_exact_and_depend_only_on_the_seed() -> None:
    with running(FakeServer()) as server:
        target = find_target(server.url, more={"top_k": 1})
        sent = []
        for seed in (3, 3, 4):
            server.asked.clear()
            run_load(target, SMALL, seed=seed)
            sent.append(sorted(server.asked[1:], key=str))  # the first request is the warm-up
    assert sent[0] == sent[1]
    assert sent[0] != sent[2]
    asked = sent[0][0]
    assert asked | {"prompt": 0} == {
        "model": "fake",
        "prompt": 0,
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "top_k": 1,
    }
    assert {100 <= token < 200 for one in sent[0] for token in one["prompt"]} == {True}
    assert sorted(len(one["prompt"]) for one in sent[0]) == sorted(len(one["prompt"]) for one in sent[2])


def test_runs_use_different_prompts_by_default() -> None:
    with running(FakeServer()) as server:
        target = find_target(server.url)
        seeds = {run_load(target, SMALL).seed for _ in range(2)}
        assert len(seeds) == 2
        assert len({str(one["prompt"]) for one in server.asked}) == len(server.asked)


@pytest.mark.parametrize("closes", [False, True])
def test_closed_loops_respect_their_concurrency(closes: bool) -> None:
    with running(FakeServer(paced, closes=closes)) as server:
        report = run_load(find_target(server.url), SMALL.scaled(arrivals=Closed(2)), seed=1)
        connections = server.num_connections
    changes = sorted(
        [(record.sent_at, 1) for record in report.requests]
        + [(record.ended_at, -1) for record in report.requests]
    )
    in_flight = [sum(change for _, change in changes[: number + 1]) for number in range(len(changes))]
    assert max(in_flight) == 2
    assert report.summary.num_failed == 0
    # Connections are reused if the server allows it. find_target needs three, the warm-up one.
    assert connections == (3 + 1 + 6 if closes else 3 + 2)


@pytest.mark.parametrize("arrivals", [Steady(40.0), Bursts(3, 0.1)])
def test_open_loops_send_on_time_regardless_of_responses(arrivals: Steady | Bursts) -> None:
    """The server responds only after all requests arrived: a client that waits for answers would hang."""
    with running(FakeServer(waits_for=6)) as server:
        report = run_load(
            find_target(server.url), SMALL.scaled(arrivals=arrivals), seed=1, warm_up=False, timeout=60
        )
    assert report.summary.num_failed == 0
    due = [record.due_at for record in report.requests]
    times = arrivals.times(6, None)  # type: ignore[arg-type]  # no random numbers are used
    assert due == pytest.approx(times, abs=2e-6)
    assert all(record.sent_at >= record.due_at for record in report.requests)


def test_chunks_with_several_tokens_cause_a_warning() -> None:
    many = FakeServer(lambda fields: [Piece(0.0, tokens=2)] * (fields["max_tokens"] // 2))
    with running(many) as server:
        report = run_load(find_target(server.url), SMALL, seed=1)
        assert report.summary.completion_tokens == 6 * 4
        assert not report.summary.itl_is_per_token
        assert any("24 tokens arrived in 12 chunks" in warning for warning in report.warnings)
        assert report.requests[0].chunk_tokens is None
        server.tells_each = True
        exact = run_load(find_target(server.url, counts_chunks=True), SMALL, seed=1)
        assert exact.requests[0].chunk_tokens == (2, 2)
        assert server.asked[-1]["stream_options"]["continuous_usage_stats"]


def test_a_server_without_usage_causes_a_warning() -> None:
    with running(FakeServer(tells_usage=False)) as server:
        report = run_load(find_target(server.url), SMALL, seed=1)
    assert report.summary.completion_tokens == 24
    assert any("chunks are counted as tokens" in warning for warning in report.warnings)


def test_short_answers_cause_a_warning() -> None:
    with running(FakeServer(lambda fields: [Piece(0.0)] * 2)) as server:
        report = run_load(find_target(server.url), SMALL, seed=1)
    assert report.summary.num_short == 6
    assert any("6 answers are shorter than requested" in warning for warning in report.warnings)


def test_failed_requests_do_not_affect_the_others() -> None:
    def refuse(fields: JsonObject) -> tuple[int, str] | None:
        return (429, "too many") if len(server.asked) in (3, 5) else None

    with running(FakeServer(refuse=refuse)) as server:
        report = run_load(find_target(server.url), SMALL, seed=1, slo=Slo(e2e=60))
    assert (report.summary.num_failed, report.summary.num_within_slo) == (2, 4)
    assert {record.status for record in report.requests if not record.is_good} == {429}
    assert any("2 of 6 requests failed; 2 of them with: too many" in warning for warning in report.warnings)


def test_a_truncated_stream_is_a_failure() -> None:
    with running(FakeServer()) as server:
        target = find_target(server.url)
        server.cuts_off = True
        report = run_load(target, SMALL, seed=1, warm_up=False)
    assert report.summary.num_failed == 6
    assert report.summary.ttft is None
    assert all("connection lost" in (record.error or "") for record in report.requests)


def test_a_silent_server_causes_a_timeout() -> None:
    with running(FakeServer(lambda fields: [Piece(30.0)])) as server:
        report = run_load(find_target(server.url), SMALL, seed=1, warm_up=False, timeout=0.2)
    assert {record.error for record in report.requests} == {"the answer took longer than 0.2 s"}


def test_progress_is_reported() -> None:
    seen: list[Progress] = []
    with running(FakeServer()) as server:
        run_load(find_target(server.url), SMALL, seed=1, watch=seen.append)
    assert (seen[-1].num_done, seen[-1].num_requests, seen[-1].num_chunks) == (6, 6, 24)


@pytest.mark.parametrize("style", [PromptStyle.TEXT, PromptStyle.CHAT])
def test_text_and_chat_prompts(style: PromptStyle) -> None:
    with running(FakeServer(tells_tokens=False)) as server:
        report = run_load(find_target(server.url, style=style), SMALL, seed=1)
        asked = server.asked[-1]
    assert report.summary.num_failed == 0
    text = asked["prompt"] if style is PromptStyle.TEXT else asked["messages"][0]["content"]
    assert re.fullmatch(r"( ?[a-z]+)+", text)
    assert len(text.split()) in [record.prompt_tokens for record in report.requests]


def test_the_api_key_is_sent() -> None:
    with running(FakeServer()) as server:
        run_load(find_target(server.url, api_key="sk-1"), SMALL, seed=1)
    assert set(server.keys) == {"bearer sk-1"}


@pytest.mark.parametrize(
    ("server", "settings", "advice"),
    [
        (FakeServer(refuse=lambda _: (401, "no key")), {}, r"returned 401 \(no key\).*OPENAI_API_KEY"),
        (
            FakeServer(refuse=lambda _: (404, "?")),
            {"model": "big"},
            "no model 'big'; use --model with one of fake",
        ),
        (FakeServer(refuse=lambda _: (404, "?")), {}, "404.*check the model name.*--prompts chat"),
        (
            FakeServer(refuse=lambda _: (400, "ids?")),
            {},
            "400.*not accept token ids, use --prompts text",
        ),
        (
            FakeServer(refuse=lambda _: (422, "?")),
            {"style": PromptStyle.TEXT},
            "does not support ignore_eos, use --no-ignore-eos",
        ),
        (FakeServer(refuse=lambda _: (503, "loading")), {}, "not ready; wait"),
        (FakeServer(refuse=lambda _: (500, "")), {}, "returned 500: see the server log"),
        (FakeServer(models=()), {}, "lists no models.*use --model"),
        (FakeServer(tells_tokens=False), {"model": "big"}, "no model 'big'; use --model with one of fake"),
        (
            FakeServer(tells_tokens=False),
            {},
            "no usable /tokenize: use --tokenizer CHECKPOINT.*--prompts text",
        ),
    ],
)
def test_errors_explain_the_fix(server: FakeServer, settings: JsonObject, advice: str) -> None:
    with running(server), pytest.raises(OctavoError, match=advice):
        run_load(find_target(server.url, **settings), SMALL, seed=1)


def test_an_unreachable_server_is_reported() -> None:
    with running(FakeServer()) as server:
        target = find_target(server.url)
    with pytest.raises(
        OctavoError, match=r"cannot connect to .*: is the server running, and is the URL correct"
    ):
        find_target(server.url)
    with pytest.raises(OctavoError, match=r"cannot connect to .*: is the server running\?"):
        run_load(target, SMALL, seed=1)
    with pytest.raises(ConfigError, match="is not the address of a server"):
        find_target("ftp://x")


def test_workloads_that_exceed_the_context_are_rejected_before_sending() -> None:
    from dataclasses import replace

    with running(FakeServer()) as server:
        target = replace(find_target(server.url), context=20)
        with pytest.raises(
            ConfigError, match=r"longest request has .* is 20: shorten requests with --prompt, --output"
        ):
            run_load(target, WORKLOADS["baseline"])
        assert server.asked == []
