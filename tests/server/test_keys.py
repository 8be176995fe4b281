"""API keys while a server runs: reload, rotation, expiry, roles, metrics and logs."""

import json
import logging
import os
from pathlib import Path

import pytest

from data.json_types import JsonObject
from octavo.config import ServerOptions
from octavo.frontend.in_flight import InFlightRequest
from octavo.observe.catalog import KEY_METRICS, METRICS
from octavo.server.app import build_app
from octavo.server.http.keys import Keys
from server.exchange import Exchange
from server.hostile import GOOD
from server.keyed_bench import ALICE, BOB, KEY_FILE, OPS, KeyedBench, RunKeyed
from server.null_bench import CHAT, COMPLETIONS, Bench, RunNull
from server.process import StartServer
from server.test_logs import lines_of

PROBES = {"/livez", "/readyz", "/healthz", "/health"}


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


# -- reload ------------------------------------------------------------------------------------------------


def test_keys_are_added_and_removed_without_a_restart(
    run_keyed: RunKeyed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo")

    async def test(bench: KeyedBench) -> None:
        in_flight = bench.ask(ALICE, COMPLETIONS, {"prompt": "x", "max_tokens": 400})
        await bench.bench.until(lambda: bench.bench.state.metrics.generation_tokens)
        bench.replace(f"bob {BOB} weight=3\ncarol sk-carol-1\n")
        assert [await bench.status(key) for key in (ALICE, BOB, "sk-carol-1")] == [401, 200, 200]
        assert (await in_flight.done()).status == 200
        assert json.loads(in_flight.content)["usage"]["completion_tokens"] == 400
        key = bench.keys.identify([(b"authorization", f"Bearer {BOB}".encode())])
        assert key is not None
        assert (key.tenant.weight, key.tenant.fraction) == (3.0, 0.75)

    run_keyed(test)
    assert "reloaded the API keys: 2 keys of 2 names" in caplog.text
    assert not errors_in(caplog)
    assert "sk-" not in caplog.text


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"a b c d\n", b"\xff\xff", None])
def test_invalid_files_change_nothing_and_are_logged_once(
    run_keyed: RunKeyed, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    async def test(bench: KeyedBench) -> None:
        if content is None:
            bench.path.unlink()
            bench.keys.reload()
        else:
            bench.replace(content)
        for _ in range(3):
            bench.keys.reload()
            assert [await bench.status(key) for key in (ALICE, OPS, "wrong")] == [200, 200, 401]
        (error,) = errors_in(caplog)
        assert "the previous keys stay valid: api_key_file: " in error
        bench.replace(f"bob {BOB}\n")
        assert [await bench.status(key) for key in (ALICE, BOB)] == [401, 200]
        bench.replace("also invalid\n")
        assert len(errors_in(caplog)) == 2

    run_keyed(test)


def test_changes_through_a_symbolic_link_are_noticed(run_keyed: RunKeyed) -> None:
    async def test(bench: KeyedBench) -> None:
        folder = bench.path.parent
        for name, key in (("first", "sk-first-1"), ("second", "sk-secnd-1")):
            (folder / name).write_text(f"a {key}\n")
            os.utime(folder / name, (1, 1))
        bench.path.unlink()
        bench.path.symlink_to("first")
        bench.keys.reload()
        assert [await bench.status(key) for key in ("sk-first-1", "sk-secnd-1")] == [200, 401]
        (folder / "link").symlink_to("second")
        (folder / "link").replace(bench.path)
        bench.keys.reload()
        assert [await bench.status(key) for key in ("sk-first-1", "sk-secnd-1")] == [401, 200]

    run_keyed(test)


def test_a_file_that_cannot_be_read_is_tried_again(
    run_keyed: RunKeyed, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: KeyedBench) -> None:
        bench.path.unlink()
        bench.path.mkdir()
        for _ in range(3):
            bench.keys.reload()
        assert await bench.status(ALICE) == 200
        bench.path.rmdir()
        bench.replace(f"bob {BOB}\n")
        assert [await bench.status(key) for key in (ALICE, BOB)] == [401, 200]

    run_keyed(test)
    assert len(errors_in(caplog)) == 1


def test_keys_rotate_with_an_overlap_and_expire(run_keyed: RunKeyed) -> None:
    async def test(bench: KeyedBench) -> None:
        statuses = [await bench.status(key) for key in ("sk-alice-new", "sk-alice-old")]
        bench.clocks.wall = 1_900_000_000 - 0.001
        statuses += [await bench.status(key) for key in ("sk-alice-new", "sk-alice-old")]
        in_flight = bench.ask("sk-alice-old", COMPLETIONS, {"prompt": "x", "max_tokens": 200})
        await bench.bench.until(lambda: bench.bench.state.metrics.generation_tokens)
        bench.clocks.wall = 1_900_000_000
        statuses += [await bench.status(key) for key in ("sk-alice-new", "sk-alice-old")]
        assert statuses == [200, 200, 200, 200, 200, 401]
        assert (await in_flight.done()).status == 200
        expired = await bench.ask("sk-alice-old", "/v1/models", None).done()
        assert (expired.error["code"], expired.headers["www-authenticate"]) == ("invalid_api_key", "Bearer")
        assert "has expired" in expired.error["message"]
        wrong = await bench.ask("sk-alice-other", "/v1/models", None).done()
        assert "has expired" not in wrong.error["message"]

    run_keyed(test, "alice sk-alice-new\nalice sk-alice-old expires=2030-03-17T17:46:40Z\n")


def test_a_running_server_reads_its_key_file_again(start: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(KEY_FILE)
    server = start("--api-key-file", str(path)).wait_until_ready()

    def status(key: str) -> int:
        return server.get("/v1/models", {"authorization": f"Bearer {key}"}).status_code

    assert [status(key) for key in (ALICE, BOB)] == [200, 200]
    path.write_text("")
    server.wait_for_log("the previous keys stay valid")
    assert [status(key) for key in (ALICE, BOB, "wrong")] == [200, 200, 401]
    path.write_text(f"bob {BOB}\n")
    server.wait_for_log("reloaded the API keys: 1 key of 1 name")
    assert [status(key) for key in (ALICE, BOB)] == [401, 200]
    assert "sk-" not in server.log


# -- roles -------------------------------------------------------------------------------------------------


def test_roles_on_every_route(run_keyed: RunKeyed) -> None:
    """Only the engine view and the fleet need an operator. Every other endpoint answers both roles alike."""

    async def test(bench: KeyedBench) -> None:
        description = json.loads((await bench.ask(OPS, "/openapi.json", None).done()).content)
        routes = [(path, method) for path, methods in description["paths"].items() for method in methods]
        assert len(routes) > 11
        for path, method in routes:
            actual = {"/v1/models/{model_id}": "/v1/models/tiny", "/octavo/view": "/octavo/view?count=1"}
            url = actual.get(path, path)
            # Without a body, a command to the fleet is not executed.
            body = GOOD.get(path, b"") if method == "post" else None
            alice, ops = [await bench.ask(key, url, body).done() for key in (ALICE, OPS)]
            if "{response_id}" in path:
                assert (alice.status, ops.status) == (404, 404), path
                continue
            assert ops.status == (400 if body == b"" else 200), path
            if path.startswith("/octavo/"):
                assert (alice.status, alice.error["code"]) == (403, "operator_key_required")
                assert "role=operator" in alice.error["message"]
                assert "403" in description["paths"][path][method]["responses"]
            else:
                assert alice.status == 200, path
                assert "403" not in description["paths"][path][method]["responses"]

    run_keyed(test)


def test_the_single_key_is_an_operators(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        app = build_app(bench.state, Keys.from_options(ServerOptions(api_key="k")))
        header = ((b"authorization", b"Bearer k"),)
        for path in ("/octavo/view?count=1", "/metrics"):
            assert (await Exchange(app, path, None, header).done()).status == 200

    run_null(test)


# -- metrics and logs --------------------------------------------------------------------------------------


def test_usage_is_counted_by_name(run_keyed: RunKeyed) -> None:
    async def test(bench: KeyedBench) -> None:
        for key, stream in ((ALICE, False), (ALICE, True), (BOB, False)):
            body = {"prompt": [65] * 6, "max_tokens": 4, "n": 2, "stream": stream}
            assert await bench.status(key, COMPLETIONS, body) == 200
        assert await bench.status(BOB, COMPLETIONS, {"prompt": "x", "n": 0}) == 400
        long = bench.ask(BOB, COMPLETIONS, {"prompt": [65] * 3, "max_tokens": 5000})
        await bench.bench.until(lambda: bench.bench.state.metrics.generation_tokens > 24)
        seen = await bench.scrape()
        long.disconnect()
        await long.done()
        assert {family.name for family in METRICS} <= {
            name + ("_total" if family.type == "counter" else "") for name, family in seen.families.items()
        }
        assert seen.by("key_prompt_tokens_total", "key") == {"alice": 12, "bob": 9}
        generated = seen.by("key_generation_tokens_total", "key")
        assert generated["alice"] == 16
        assert sum(generated.values()) == seen("generation_tokens_total")
        assert seen("key_requests_total", key="alice", status="2xx") == 2
        assert seen("key_requests_total", key="bob", status="4xx") == 1
        assert seen.by("key_requests_in_flight", "key") == {"bob": 1}
        assert seen("key_generation_tokens_total", key="ops") == 0
        after = await bench.scrape()
        assert after.by("key_requests_in_flight", "key") == {}
        assert after("key_requests_total", key="bob", status="none") == 1

    run_keyed(test)


def test_an_inference_key_sees_only_its_own_usage(run_keyed: RunKeyed) -> None:
    async def test(bench: KeyedBench) -> None:
        for key in (ALICE, BOB):
            await bench.status(key, COMPLETIONS, {"prompt": "x", "max_tokens": 2})
        own, all_ = await bench.scrape(ALICE), await bench.scrape(OPS)
        assert {sample[1] for sample in own.samples} == {("key", "alice")}
        assert set(own.families) == {metric.name.removesuffix("_total") for metric in KEY_METRICS}
        assert own("key_generation_tokens_total", key="alice") == 2
        assert own.samples.keys() < all_.samples.keys()
        assert "bob" not in own.text
        assert "process_" not in own.text

    run_keyed(test)


def test_removed_names_leave_the_metrics(run_keyed: RunKeyed) -> None:
    async def test(bench: KeyedBench) -> None:
        await bench.status(ALICE)
        in_flight = bench.ask(BOB, COMPLETIONS, {"prompt": "x", "max_tokens": 5000})
        await bench.bench.until(lambda: bench.bench.state.metrics.generation_tokens)
        bench.replace(f"ops {OPS} role=operator\n")
        seen = await bench.scrape()
        assert seen.by("key_requests_in_flight", "key") == {"bob": 1}
        assert "alice" not in seen.text
        in_flight.disconnect()
        await in_flight.done()
        assert "bob" not in (await bench.scrape()).text

    run_keyed(test)


def test_log_lines_name_the_key_and_the_address(
    run_keyed: RunKeyed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo")

    async def test(bench: KeyedBench) -> None:
        for key, path in ((ALICE, "/v1/models"), ("sk-wrong-1", "/v1/models"), ("sk-wrong-2", "/metrics")):
            await bench.status(key, path)
        known, *wrong = lines_of(caplog)
        assert (known["key"], known["address"], known["status"]) == ("alice", "test", 200)
        assert [(line["address"], line["status"]) for line in wrong] == [("test", 401)] * 2
        assert not any("key" in line for line in wrong)
        assert "key alice, address test" in caplog.text
        assert "sk-" not in caplog.text

    run_keyed(test)


def test_log_lines_without_keys_have_only_the_address(
    run_null: RunNull, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo")

    async def test(bench: Bench) -> None:
        await bench.ask("/v1/models", None).done()
        (line,) = lines_of(caplog)
        assert line["address"] == "test"
        assert "key" not in line

    run_null(test)


# -- limits of the application -----------------------------------------------------------------------------


def test_every_post_endpoint_counts_in_requests_per_minute(run_keyed: RunKeyed) -> None:
    async def test(bench: KeyedBench) -> None:
        posts = (CHAT, COMPLETIONS, "/tokenize", "/detokenize")
        assert [await bench.status(ALICE, path, GOOD[path]) for path in posts] == [200] * 4
        for path in posts:
            rejected = await bench.ask(ALICE, path, GOOD[path]).done()
            assert (rejected.status, rejected.error["code"]) == (429, "rate_limit_exceeded")
            assert "requests_per_minute=4" in rejected.error["message"]
            assert rejected.headers["retry-after"] == "61"
        assert await bench.status(ALICE) == 200
        assert await bench.status(BOB, COMPLETIONS, GOOD[COMPLETIONS]) == 200
        wait = int(rejected.headers["retry-after-ms"]) / 1000
        bench.clocks.monotonic += wait - 0.3
        assert await bench.status(ALICE, COMPLETIONS, GOOD[COMPLETIONS]) == 429
        bench.clocks.monotonic += 0.3
        assert await bench.status(ALICE, COMPLETIONS, GOOD[COMPLETIONS]) == 200
        assert (await bench.scrape()).by("key_rejected_total", "limit") == {"requests_per_minute": 5}

    run_keyed(test, KEY_FILE.replace(ALICE, f"{ALICE} requests_per_minute=4"))


def test_tokens_per_minute_and_streams(run_keyed: RunKeyed) -> None:
    async def test(bench: KeyedBench) -> None:
        def body(num_prompt: int, max_tokens: int, n: int = 1) -> JsonObject:
            return {"prompt": [65] * num_prompt, "max_tokens": max_tokens, "n": n}

        assert await bench.status(ALICE, COMPLETIONS, body(10, 20, 2)) == 200  # 50 of 100
        rejected = await bench.ask(ALICE, COMPLETIONS, body(11, 20, 2)).done()
        assert (rejected.status, rejected.error["code"]) == (429, "rate_limit_exceeded")
        assert "tokens_per_minute=100" in rejected.error["message"]
        assert await bench.status(ALICE, COMPLETIONS, body(10, 20, 2)) == 200
        assert await bench.status(ALICE, COMPLETIONS, body(1, 1)) == 429
        bench.clocks.monotonic += 60.25
        large = bench.ask(ALICE, COMPLETIONS, body(10, 5000))
        await bench.bench.until(lambda: bench.bench.state.metrics.generation_tokens > 80)
        streams = await bench.ask(ALICE, COMPLETIONS, body(1, 1)).done()
        assert "max_streams=1" in streams.error["message"]
        large.disconnect()
        await large.done()
        seen = await bench.scrape()
        assert seen.by("key_rejected_total", "limit") == {"tokens_per_minute": 2, "max_streams": 1}
        assert bench.keys.accounts.of("alice").tokens.num_reserved == 0

    run_keyed(test, KEY_FILE.replace(ALICE, f"{ALICE} tokens_per_minute=100 max_streams=1"))


def test_tokens_beyond_the_context_are_not_reserved(run_keyed: RunKeyed) -> None:
    """Agents ask for as many tokens as the largest models write. The answer ends with the context."""

    async def test(bench: KeyedBench) -> None:
        context = bench.bench.state.pool.facts.max_model_len
        messages = [{"role": "user", "content": "x"}]
        body = {"messages": messages, "max_tokens": 1000 * context}
        asked = bench.ask(ALICE, "/v1/messages", body)
        await bench.bench.until(lambda: bench.bench.state.metrics.generation_tokens)
        tokens = bench.keys.accounts.of("alice").tokens
        assert 0 < tokens.num_reserved < context
        asked.disconnect()
        await asked.done()
        assert tokens.num_reserved == 0

    run_keyed(test, KEY_FILE.replace(ALICE, f"{ALICE} tokens_per_minute=100000000"))


def test_priority_counts_across_keys_only_if_enabled(
    run_null: RunNull, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        ranks: list[int] = []
        submit = bench.hub.submit

        def noting_ranks(request: InFlightRequest) -> None:
            ranks.append(request.prepared.messages[0].rank)
            submit(request)

        monkeypatch.setattr(bench.hub, "submit", noting_ranks)
        for across in (False, True):
            bench.state.options = ServerOptions(priority_across_keys=across)
            await bench.answer(prompt="x", max_tokens=1, priority=-7)
        assert ranks == [0, -7]

    run_null(test)
