"""/metrics after a known mix of requests, with the real scheduler and a model that computes nothing."""

import os
import signal

import msgspec
import pytest

from data.engine_facts import IDLE_STATS
from octavo.observe.catalog import KEY_METRICS, METRICS, Kind
from octavo.observe.engine_tally import EngineTally
from octavo.simulate.null_engine import FIRST_TOKEN
from server.exchange import Exchange
from server.null_bench import CHAT, COMPLETIONS, STEP_SECONDS, Bench, RunNull, Scrape


async def send_known_mix(bench: Bench) -> None:
    """Send requests that complete 13 sequences with 38 tokens, from 43 prompt tokens, and some that fail."""
    await bench.answer(prompt=[65] * 6, max_tokens=5)
    await bench.answer(prompt=[65] * 7, max_tokens=4, n=2, stream=True)
    await bench.answer(prompt=[[65] * 2, [65] * 3], max_tokens=3, n=2)
    # The token at position 12 ends the answer. It is the third token.
    await bench.answer(prompt=[65] * 10, max_tokens=9, stop_token_ids=[FIRST_TOKEN + 12], stream=True)
    for _ in range(5):
        await bench.answer(prompt=[65] * 3, max_tokens=2)
    refused = [
        await bench.ask(COMPLETIONS, {"prompt": "x", "model": "another"}).done(),
        await bench.ask(COMPLETIONS, {"prompt": "x", "n": 0}).done(),
        await bench.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 10**6}).done(),
        await bench.ask("/nowhere", {}).done(),
    ]
    assert [one.status for one in refused] == [404, 400, 400, 404]


def test_counts_agree_with_a_known_mix(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        await send_known_mix(bench)
        seen = await bench.scrape()
        assert seen.by("request_success_total", "finished_reason") == {"length": 12, "stop": 1}
        assert seen("prompt_tokens_total") == 6 + 7 + 5 + 10 + 15
        assert seen("generation_tokens_total") == 5 + 8 + 12 + 3 + 10
        assert seen("prefix_cache_queries_total") == 6 + 14 + 10 + 10 + 15  # once per choice
        assert seen("prefix_cache_hits_total") == 0  # no prompt fills a block
        for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
            assert seen(f"{name}_seconds_count") == 13
        for name in ("request_prefill_time", "request_decode_time"):
            assert seen(f"{name}_seconds_count") == 13
        assert seen("inter_token_latency_seconds_count") == 38 - 13
        assert seen("http_requests_total", route=COMPLETIONS, status="2xx") == 9
        assert seen("http_requests_total", route=COMPLETIONS, status="4xx") == 3
        assert seen("http_requests_total", route="other", status="4xx") == 1
        assert seen("http_requests_total", route=COMPLETIONS, status="5xx") == 0, "shown before the first"
        assert (await bench.scrape())("http_requests_total", route="/metrics", status="2xx") == 1
        assert seen("num_preemptions_total") == seen("engine_restarts_total") == 0
        assert seen("num_requests_running") == seen("num_requests_waiting") == 0
        assert seen("num_requests_queued") == seen("num_tokens_queued") == 0
        assert (seen("ready"), seen("kv_cache_usage_perc")) == (1, 0)

    run_null(test)


def test_times_are_measured_by_the_engine(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        answer = await bench.answer(prompt=[65] * 3, max_tokens=20, octavo=True)
        choice = answer["octavo"]["requests"][0]["choices"][0]
        seen = await bench.scrape()
        assert seen("request_queue_time_seconds_sum") == pytest.approx(choice["queue_seconds"], abs=1e-5)
        assert seen("request_prefill_time_seconds_sum") == pytest.approx(choice["prefill_seconds"], abs=1e-5)
        assert seen("request_decode_time_seconds_sum") == pytest.approx(choice["decode_seconds"], abs=1e-5)
        assert seen("step_seconds_count") == 20
        assert seen("step_seconds_sum") >= 20 * STEP_SECONDS
        between = seen("inter_token_latency_seconds_sum") + seen("time_to_first_token_seconds_sum")
        assert 20 * STEP_SECONDS <= between <= seen("e2e_request_latency_seconds_sum") + 1e-6

    run_null(test)


def test_drafted_and_accepted_tokens_of_earlier_engines_are_exported(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        before = await bench.scrape()
        dead = EngineTally()
        dead.engine_ready(IDLE_STATS)
        dead.note(msgspec.structs.replace(IDLE_STATS, tokens_drafted=12, tokens_accepted=9))
        bench.replicas.supervisors[0].tally.absorb(dead)
        after = await bench.scrape()
        for name, number in (("draft", 12), ("accepted", 9)):
            metric = f"spec_decode_num_{name}_tokens_total"
            assert after(metric) - before(metric) == number, name

    run_null(test)


def test_the_prefix_cache_is_counted_as_in_usage(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        cached = 0
        for _ in range(3):
            answer = await bench.answer(prompt=[66] * 100, max_tokens=1)
            cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        seen = await bench.scrape()
        assert seen("prefix_cache_queries_total") == 300
        assert seen("prefix_cache_hits_total") == cached > 0
        assert seen("kv_cache_usage_perc") == 0  # cached, but used by no sequence
        assert seen("kv_cache_filled_perc") > 0

    run_null(test)


@pytest.mark.parametrize("stream", [False, True])
def test_disconnected_clients_are_counted(run_null: RunNull, stream: bool) -> None:
    async def test(bench: Bench) -> None:
        asked = bench.ask(COMPLETIONS, {"prompt": [65] * 9, "max_tokens": 5000, "n": 2, "stream": stream})
        await bench.until(lambda: bench.state.metrics.generation_tokens > 5)
        seen = await bench.scrape()
        assert seen("num_requests_running") == 2
        assert seen("kv_cache_usage_perc") > 0
        asked.disconnect()
        await asked.done()
        await bench.until(lambda: (stats := bench.supervisor.stats) is not None and stats.num_running == 0)
        seen = await bench.scrape()
        assert seen.by("request_success_total", "finished_reason") == {"abort": 2}
        assert seen("http_requests_total", route=COMPLETIONS, status="2xx" if stream else "none") == 1
        assert seen("prompt_tokens_total") == 9
        assert seen("time_to_first_token_seconds_count") == 2
        assert seen("inter_token_latency_seconds_count") == seen("generation_tokens_total") - 2
        assert seen("e2e_request_latency_seconds_count") == seen("request_queue_time_seconds_count") == 0

    run_null(test)


def test_timed_out_requests_are_counted(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        body = {"messages": [{"role": "user", "content": "x"}], "timeout": 0.05, "max_tokens": 5000}
        assert (await bench.ask(CHAT, body).done()).status == 408
        seen = await bench.scrape()
        assert seen.by("request_success_total", "finished_reason") == {"deadline": 1}
        assert seen("http_requests_total", route=CHAT, status="4xx") == 1

    run_null(test)


def test_counters_continue_when_the_engine_is_replaced(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        await send_known_mix(bench)
        before = await bench.scrape()
        os.kill(bench.supervisor.engine_pid or 0, signal.SIGKILL)
        await bench.until(lambda: bench.supervisor.num_restarts == 1)
        assert (await bench.scrape()).samples.keys() >= before.samples.keys() - {
            key for key in before.samples if key[0] == "octavo:startup_seconds"
        }
        await send_known_mix(bench)  # waits for the new engine
        after = await bench.scrape()
        assert after("engine_restarts_total") == 1
        for name in (
            "generation_tokens_total",
            "prompt_tokens_total",
            "prefix_cache_queries_total",
            "e2e_request_latency_seconds_count",
        ):
            assert after(name) == 2 * before(name), name
        assert after("step_seconds_count") > before("step_seconds_count")

    run_null(test)


def test_a_replayed_answer_is_counted_once(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        asked = bench.ask(COMPLETIONS, {"prompt": [65] * 9, "max_tokens": 60, "stream": True})
        await bench.until(lambda: bench.state.metrics.generation_tokens > 5)
        os.kill(bench.supervisor.engine_pid or 0, signal.SIGKILL)
        await asked.done()
        seen = await bench.scrape()
        assert seen("engine_restarts_total") == 1
        assert seen.by("request_success_total", "finished_reason") == {"length": 1}
        assert (seen("prompt_tokens_total"), seen("generation_tokens_total")) == (9, 60)
        assert seen("time_to_first_token_seconds_count") == 1
        assert seen("inter_token_latency_seconds_count") == 59
        assert seen("prefix_cache_queries_total") == 18  # both engines looked up the cache

    run_null(test)


def test_clients_cannot_add_time_series(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        async def ask_strangely(number: int) -> None:
            await bench.ask(f"/strange/{number}", {}).done()
            await bench.ask(f"/v1/models/strange-{number}", None).done()
            await bench.ask(COMPLETIONS, {"prompt": "x", "model": f"strange-{number}"}).done()

        await bench.scrape()
        await ask_strangely(0)
        before = (await bench.scrape()).samples.keys()
        for number in range(1, 30):
            await ask_strangely(number)
        after = await bench.scrape()
        assert after.samples.keys() == before
        assert "strange" not in after.text

    run_null(test)


def test_every_metric_is_exposed_with_its_type(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        seen = await bench.scrape()
        found = {name: family.type for name, family in seen.families.items() if name.startswith("octavo:")}
        exported = set(METRICS) - set(KEY_METRICS)  # there are no keys
        assert found == {metric.name.removesuffix("_total"): metric.kind for metric in exported}
        assert any(metric.kind is Kind.HISTOGRAM for metric in METRICS)
        assert set(seen.by("startup_seconds", "phase")) <= {"starting", "opening", "loading", "warming_up"}
        assert seen("startup_seconds", phase="starting") > 0
        assert seen("time_to_first_token_seconds_bucket", le="+Inf") == 0
        openmetrics = Exchange(bench.app, "/metrics", None, ((b"accept", b"application/openmetrics-text"),))
        assert (await openmetrics.done()).content.endswith(b"# EOF\n")

    run_null(test)


SUMS = {
    "replica_num_requests_running": "num_requests_running",
    "replica_prefix_cache_queries_total": "prefix_cache_queries_total",
    "replica_prefix_cache_hits_total": "prefix_cache_hits_total",
    "replica_num_preemptions_total": "num_preemptions_total",
    "replica_engine_restarts_total": "engine_restarts_total",
    "replica_request_moves_in_total": "request_moves_total",
    "replica_request_moves_out_total": "request_moves_total",
}


def check_sums(seen: Scrape) -> None:
    for part, whole in SUMS.items():
        assert sum(seen.by(part, "replica").values()) == seen(whole), part


def test_metrics_are_sums_over_replicas(run_null: RunNull) -> None:
    """Two requests run on two engines. One engine dies, and the other computes both. Then it is removed."""

    async def test(bench: Bench) -> None:
        first, second = bench.replicas.supervisors
        body = {"prompt": [65] * 9, "max_tokens": 800, "stream": True}
        asked = [bench.ask(COMPLETIONS, body) for _ in range(2)]
        await bench.until(lambda: all(bench.hub.request_ids(one.name) for one in (first, second)))
        await bench.until(lambda: [s.num_running for s in bench.replicas.totals.live] == [1, 1])
        running = await bench.scrape()
        check_sums(running)
        assert running.by("replica_num_requests_running", "replica") == {"r0": 1, "r1": 1}
        assert {running("replica_state", replica=name, state="ready") for name in ("r0", "r1")} == {1}
        os.kill(second.engine_pid or 0, signal.SIGKILL)
        answers = [await one.done() for one in asked]
        assert [answer.status for answer in answers] == [200, 200]
        seen = await bench.scrape()
        assert seen("engine_restarts_total") == 1
        assert first.num_restarts == 0
        assert seen("generation_tokens_total") == 1600
        assert seen("prefix_cache_queries_total") >= 27, "the second request was admitted twice"
        check_sums(seen)
        assert seen("replica_engine_restarts_total", replica="r1") == 1
        assert seen("replica_request_moves_out_total", replica="r1") >= 1
        assert seen("replica_request_moves_in_total", replica="r0") >= 1
        assert sum(seen.by("replica_generation_tokens_total", "replica").values()) >= 1600
        await bench.until(lambda: second.is_usable)
        await bench.replicas.remove("r0")
        after = await bench.scrape()
        assert set(after.by("replica_state", "replica")) == {"r1"}
        for name in {*SUMS.values()} - {"num_requests_running"}:
            assert after(name) == seen(name), "a removed replica stays in the sums"

    run_null(test, num_replicas=2, step_seconds=0.01)
