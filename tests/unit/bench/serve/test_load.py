"""Loads against a server whose every delay is known."""

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


def test_measured_times_are_those_of_the_server() -> None:
    """Nothing can come before it is sent: exact from below. From above, a machine may be late."""
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
    slack = 0.002  # of sleeping
    assert FIRST - slack <= summary.ttft.min <= summary.ttft.p50
    assert FIRST + 3 * GAP - 4 * slack <= summary.e2e.min <= summary.e2e.p50
    # A gap is short where the chunk before it was late; but no chunk comes before its time.
    for record in report.requests:
        for number, at in enumerate(record.chunk_times):
            assert at - record.sent_at >= FIRST + number * GAP - (number + 1) * slack
    assert summary.itl.mean > 0
    assert not any("due" not in warning for warning in report.warnings)  # the machine may be busy


def test_json_says_all_of_it() -> None:
    with running(FakeServer()) as server:
        report = run_load(find_target(server.url), SMALL, seed=7, slo=Slo(itl=1.0))
    again = LoadReport.of_json(report.as_json())
    assert again == report
    assert summarise(again.requests, again.slo) == report.summary
    assert (again.seed, again.workload.arrivals, again.workload.prompt) == (7, "once", "3-20")


def test_what_is_sent_is_exact_and_depends_on_the_seed_alone() -> None:
    with running(FakeServer()) as server:
        target = find_target(server.url, more={"top_k": 1})
        sent = []
        for seed in (3, 3, 4):
            server.asked.clear()
            run_load(target, SMALL, seed=seed)
            sent.append(sorted(server.asked[1:], key=str))  # the first one warms up
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


def test_no_two_runs_ask_the_same_unless_told() -> None:
    with running(FakeServer()) as server:
        target = find_target(server.url)
        seeds = {run_load(target, SMALL).seed for _ in range(2)}
        assert len(seeds) == 2
        assert len({str(one["prompt"]) for one in server.asked}) == len(server.asked)


@pytest.mark.parametrize("closes", [False, True])
def test_closed_loops_never_have_more_under_way(closes: bool) -> None:
    with running(FakeServer(paced, closes=closes)) as server:
        report = run_load(find_target(server.url), SMALL.scaled(arrivals=Closed(2)), seed=1)
        connections = server.num_connections
    changes = sorted(
        [(record.sent_at, 1) for record in report.requests]
        + [(record.ended_at, -1) for record in report.requests]
    )
    under_way = [sum(change for _, change in changes[: number + 1]) for number in range(len(changes))]
    assert max(under_way) == 2
    assert report.summary.num_failed == 0
    # Connections are used again where the server lets us. Three were to find it; one warms up.
    assert connections == (3 + 1 + 6 if closes else 3 + 2)


@pytest.mark.parametrize("arrivals", [Steady(40.0), Bursts(3, 0.1)])
def test_open_loops_send_when_due_whatever_comes_back(arrivals: Steady | Bursts) -> None:
    """Nothing is said before all have asked: a client that waits for answers would wait for ever."""
    with running(FakeServer(waits_for=6)) as server:
        report = run_load(
            find_target(server.url), SMALL.scaled(arrivals=arrivals), seed=1, warm_up=False, timeout=60
        )
    assert report.summary.num_failed == 0
    due = [record.due_at for record in report.requests]
    times = arrivals.times(6, None)  # type: ignore[arg-type]  # nothing is drawn
    assert due == pytest.approx(times, abs=2e-6)
    assert all(record.sent_at >= record.due_at for record in report.requests)


def test_chunks_of_several_tokens_are_said() -> None:
    many = FakeServer(lambda fields: [Piece(0.0, tokens=2)] * (fields["max_tokens"] // 2))
    with running(many) as server:
        report = run_load(find_target(server.url), SMALL, seed=1)
        assert report.summary.completion_tokens == 6 * 4
        assert not report.summary.itl_is_per_token
        assert any("24 tokens came in 12 chunks" in warning for warning in report.warnings)
        assert report.requests[0].chunk_tokens is None
        server.tells_each = True
        exact = run_load(find_target(server.url, counts_chunks=True), SMALL, seed=1)
        assert exact.requests[0].chunk_tokens == (2, 2)
        assert server.asked[-1]["stream_options"]["continuous_usage_stats"]


def test_a_server_that_does_not_count_is_said() -> None:
    with running(FakeServer(tells_usage=False)) as server:
        report = run_load(find_target(server.url), SMALL, seed=1)
    assert report.summary.completion_tokens == 24
    assert any("chunks were counted instead" in warning for warning in report.warnings)


def test_answers_that_end_early_are_said() -> None:
    with running(FakeServer(lambda fields: [Piece(0.0)] * 2)) as server:
        report = run_load(find_target(server.url), SMALL, seed=1)
    assert report.summary.num_short == 6
    assert any("6 answers have fewer tokens than asked" in warning for warning in report.warnings)


def test_one_failure_is_one_failure() -> None:
    def refuse(fields: JsonObject) -> tuple[int, str] | None:
        return (429, "too many") if len(server.asked) in (3, 5) else None

    with running(FakeServer(refuse=refuse)) as server:
        report = run_load(find_target(server.url), SMALL, seed=1, slo=Slo(e2e=60))
    assert (report.summary.num_failed, report.summary.num_within_slo) == (2, 4)
    assert {record.status for record in report.requests if not record.is_good} == {429}
    assert any("2 of 6 requests failed; 2 of them said: too many" in warning for warning in report.warnings)


def test_a_stream_that_is_cut_off_fails() -> None:
    with running(FakeServer()) as server:
        target = find_target(server.url)
        server.cuts_off = True
        report = run_load(target, SMALL, seed=1, warm_up=False)
    assert report.summary.num_failed == 6
    assert report.summary.ttft is None
    assert all("connection was lost" in (record.error or "") for record in report.requests)


def test_a_silent_server_ends_in_time() -> None:
    with running(FakeServer(lambda fields: [Piece(30.0)])) as server:
        report = run_load(find_target(server.url), SMALL, seed=1, warm_up=False, timeout=0.2)
    assert {record.error for record in report.requests} == {"no end within 0.2 s"}


def test_progress_is_told() -> None:
    seen: list[Progress] = []
    with running(FakeServer()) as server:
        run_load(find_target(server.url), SMALL, seed=1, watch=seen.append)
    assert (seen[-1].num_done, seen[-1].num_requests, seen[-1].num_chunks) == (6, 6, 24)


@pytest.mark.parametrize("style", [PromptStyle.TEXT, PromptStyle.CHAT])
def test_texts_and_chats(style: PromptStyle) -> None:
    with running(FakeServer(tells_tokens=False)) as server:
        report = run_load(find_target(server.url, style=style), SMALL, seed=1)
        asked = server.asked[-1]
    assert report.summary.num_failed == 0
    text = asked["prompt"] if style is PromptStyle.TEXT else asked["messages"][0]["content"]
    assert re.fullmatch(r"( ?[a-z]+)+", text)
    assert len(text.split()) in [record.prompt_tokens for record in report.requests]


def test_keys_are_sent() -> None:
    with running(FakeServer()) as server:
        run_load(find_target(server.url, api_key="sk-1"), SMALL, seed=1)
    assert set(server.keys) == {"bearer sk-1"}


@pytest.mark.parametrize(
    ("server", "settings", "advice"),
    [
        (FakeServer(refuse=lambda _: (401, "no key")), {}, r"answered 401 \(no key\).*OPENAI_API_KEY"),
        (
            FakeServer(refuse=lambda _: (404, "?")),
            {"model": "big"},
            "no model 'big'; give --model with one of fake",
        ),
        (FakeServer(refuse=lambda _: (404, "?")), {}, "404.*does the API lie there.*--prompts chat"),
        (FakeServer(refuse=lambda _: (400, "ids?")), {}, "400.*does not take token ids, give --prompts text"),
        (
            FakeServer(refuse=lambda _: (422, "?")),
            {"style": PromptStyle.TEXT},
            "does not know ignore_eos, give --no-ignore-eos",
        ),
        (FakeServer(refuse=lambda _: (503, "loading")), {}, "not ready; wait"),
        (FakeServer(refuse=lambda _: (500, "")), {}, "answered 500: its log"),
        (FakeServer(models=()), {}, "lists no models.*give --model"),
        (FakeServer(tells_tokens=False), {"model": "big"}, "no model 'big'; give --model with one of fake"),
        (FakeServer(tells_tokens=False), {}, "no /tokenize.*give --tokenizer CHECKPOINT.*--prompts text"),
    ],
)
def test_errors_say_what_to_do(server: FakeServer, settings: JsonObject, advice: str) -> None:
    with running(server), pytest.raises(OctavoError, match=advice):
        run_load(find_target(server.url, **settings), SMALL, seed=1)


def test_a_server_that_is_away_is_said() -> None:
    with running(FakeServer()) as server:
        target = find_target(server.url)
    with pytest.raises(OctavoError, match=r"no server answers at .*: is it running, and is this its address"):
        find_target(server.url)
    with pytest.raises(OctavoError, match=r"does not answer .*: is the server running"):
        run_load(target, SMALL, seed=1)
    with pytest.raises(ConfigError, match="is not the address of a server"):
        find_target("ftp://x")


def test_requests_that_cannot_fit_are_refused_before_any_is_sent() -> None:
    from dataclasses import replace

    with running(FakeServer()) as server:
        target = replace(find_target(server.url), context=20)
        with pytest.raises(ConfigError, match=r"longest request has .* a context of 20: --prompt, --output"):
            run_load(target, WORKLOADS["baseline"])
        assert server.asked == []
