"""The engine view over HTTP: its contents, its delivery to viewers, and no effect on other requests."""

import asyncio
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import msgspec
import pytest
from starlette.types import Message

from data.json_types import Json
from octavo.frontend.supervisor import EngineSupervisor
from octavo.observe.recent import RecentLatencies
from octavo.server.operate.engine_views import RecentPieces
from octavo.server.operate.view import ViewStream
from octavo.server.operate.view_feed import EARLY, MAX_WATCHERS
from octavo.simulate.null_engine import BLOCK_SIZE, NUM_BLOCKS
from octavo.view import FREE, Event
from patience import HANG_SECONDS
from server.exchange import Exchange
from server.null_bench import CHAT, COMPLETIONS, Bench, RunNull
from server.process import StartServer

VIEW = "/octavo/view"


def all_events(content: bytes) -> list[Json]:
    whole = content.decode().split("\n\n")[:-1]
    encoded = [event.removeprefix("data: ") for event in whole if event.startswith("data: ")]
    for event in encoded:  # the structs describe the events completely
        assert msgspec.json.encode(msgspec.json.decode(event, type=Event)).decode() == event
    return [json.loads(event) for event in encoded]


def events(content: bytes) -> list[Json]:
    """Return the events about the engine that is shown."""
    first, *_ = received = all_events(content)
    assert first["kind"] == "fleet"
    return [event for event in received if event["kind"] != "fleet"]


def views(content: bytes) -> list[Json]:
    return [event for event in all_events(content) if event["kind"] == "view"]


async def watch(bench: Bench, query: str = "interval=0.1") -> Exchange:
    """Open a viewer and wait for its first view."""
    viewer = bench.ask(f"{VIEW}?{query}", None)
    await bench.until(lambda: views(viewer.content))
    return viewer


async def disconnect(*viewers: Exchange) -> None:
    for viewer in viewers:
        viewer.disconnect()
        await viewer.done()


def num_generated(steps: list[Json]) -> int:
    """Return how many tokens the steps added to answers: rejected drafts were sampled in vain."""
    sampled = sum(number for step in steps for _, _, _, number in step["slices"])
    return int(sampled - sum(drafted - accepted for step in steps for _, drafted, accepted in step["drafts"]))


def test_a_request_from_its_first_step_to_its_explanation(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        viewer = await watch(bench)
        prompt = [65] * (2 * BLOCK_SIZE + 5)
        answer = await bench.answer(prompt=prompt, max_tokens=120, octavo=True, n=2, stop=["secret"])
        refused = await bench.ask(CHAT, {"messages": [], "secret": 1}).done()
        await bench.until(lambda: sum(len(view["finished"]) for view in views(viewer.content)) == 2)
        await disconnect(viewer)
        facts, *_ = received = events(viewer.content)
        assert (facts["kind"], facts["model"], facts["facts"]["num_blocks"]) == ("facts", "tiny", NUM_BLOCKS)
        seen = views(viewer.content)
        assert len(received) == 1 + len(seen)
        assert seen[0]["blocks"] == [[FREE, NUM_BLOCKS]]
        for view in seen:
            assert sum(count for _, count in view["blocks"]) == NUM_BLOCKS
            assert view["steps_left_out"] == view["finished_left_out"] == 0
        steps = [step for view in seen for step in view["steps"]]
        assert [step["step"] for step in steps] == list(range(steps[0]["step"], steps[-1]["step"] + 1))
        assert num_generated(steps) == 240
        done, wrong = (one for view in seen for one in view["finished"])
        assert (done["route"], done["status"], done["response_id"]) == (COMPLETIONS, 200, answer["id"])
        assert (done["completion_tokens"], done["finish_reason"], done["stream"]) == (240, "length", False)
        explained = done["octavo"]["requests"][0]
        assert explained["seed"] == answer["octavo"]["requests"][0]["seed"]
        assert explained["first_miss"] == {"position": 0}
        assert (wrong["status"], wrong["error"], wrong["octavo"]) == (
            refused.status,
            "invalid_request_error",
            None,
        )
        latency = seen[-1]["latency"]
        assert latency["ttft_p50"] > 0
        assert latency["itl_p99"] >= latency["itl_p50"] > 0
        assert "secret" not in viewer.content.decode()

    run_null(test)


def test_another_replica_is_shown_when_the_first_is_removed(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        viewer = await watch(bench)
        await bench.replicas.remove("r0")
        await bench.until(lambda: [one["kind"] for one in events(viewer.content)].count("facts") == 2)
        seen = len(views(viewer.content))
        await bench.until(lambda: len(views(viewer.content)) > seen)
        await disconnect(viewer)

    run_null(test, num_replicas=2)


def test_each_viewer_sees_the_replica_that_it_asked_for(run_null: RunNull) -> None:
    def sampled(viewer: Exchange) -> int:
        steps = [step for view in views(viewer.content) for step in view["steps"]]
        return num_generated(steps)

    def is_complete(viewer: Exchange, num_sampled: int) -> bool:
        left_out = any(view["steps_left_out"] for view in views(viewer.content))
        return sampled(viewer) == num_sampled or (left_out and sampled(viewer) > 0)

    def replicas(viewer: Exchange) -> dict[str, Json]:
        fleet = [event for event in all_events(viewer.content) if event["kind"] == "fleet"][-1]
        return {replica["name"]: replica for replica in fleet["replicas"]}

    async def test(bench: Bench) -> None:
        await bench.until(lambda: len(bench.hub.usable) == 3)
        pinned, twin = await watch(bench, "interval=0.1&replica=r1"), await watch(bench, "replica=r1")
        free = await watch(bench)
        num_tokens = 0
        while not all(bench.replicas.find(name).tally.counts.tokens_sampled for name in ("r0", "r1")):
            body = {"max_tokens": 20}
            answers = [bench.ask(COMPLETIONS, body | {"prompt": [one] * 9}) for one in range(65, 77)]
            for answer in answers:
                await answer.done()
            num_tokens += 20 * len(answers)
        await bench.until(lambda: sum(one["tokens"] for one in replicas(free).values()) >= num_tokens)
        for viewer in (pinned, twin):
            await bench.until(partial(is_complete, viewer, replicas(free)["r1"]["tokens"]))
            facts = [event["replica"] for event in events(viewer.content) if event["kind"] == "facts"]
            assert set(facts) == {"r1"}
        assert events(free.content)[0]["replica"] == "r0"
        await disconnect(twin)
        before = len(views(pinned.content))
        await bench.until(lambda: len(views(pinned.content)) > before)
        await bench.replicas.remove("r1")
        await bench.until(lambda: events(pinned.content)[-1].get("state") == "removed")
        await bench.until(lambda: list(replicas(pinned)) == list(replicas(free)) == ["r0", "r2"])
        refused = await bench.ask(f"{VIEW}?replica=r1", None).done()
        error = refused.error
        assert (refused.status, error["code"], error["param"]) == (404, "replica_not_found", "replica")
        await disconnect(pinned, free)
        assert all(supervisor.on_view is None for supervisor in bench.replicas.supervisors)

    run_null(test, num_replicas=3)


def test_an_in_flight_request_is_shown_with_its_blocks(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        viewer = await watch(bench)
        body = {"prompt": [66] * (BLOCK_SIZE + 1), "max_tokens": 6000, "n": 2, "stream": True}
        asked = bench.ask(COMPLETIONS, body)
        await bench.until(lambda: len(views(viewer.content)[-1]["sequences"]) == 2)
        view = views(viewer.content)[-1]
        asked.disconnect()
        await asked.done()
        await bench.until(lambda: any(view["finished"] for view in views(viewer.content)))
        await disconnect(viewer)
        response_id = json.loads(asked.content.split(b"\n\n")[0].removeprefix(b"data: "))["id"]
        first, second = view["sequences"]
        assert (first["choice"], second["choice"]) == (0, 1)
        assert first["request_id"] == second["request_id"] == f"{response_id}-0"
        assert second["num_shared_blocks"] >= 1, "the first block of the prompt"
        for one in (first, second):
            private = sum(count for code, count in view["blocks"] if code == one["slot"])
            assert private == one["num_blocks"] - one["num_shared_blocks"]
        ended = next(one for view in views(viewer.content) for one in view["finished"])
        assert (ended["finish_reason"], ended["response_id"]) == ("abort", response_id)

    run_null(test)


def test_viewers_share_views_and_each_gets_every_step_once(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        quick, twin = await watch(bench), await watch(bench)
        slow = await watch(bench, "interval=0.9")
        await bench.answer(prompt=[65] * 9, max_tokens=300)
        num_steps = 300
        viewers = (quick, twin, slow)

        def steps(viewer: Exchange) -> list[int]:
            return [step["step"] for view in views(viewer.content) for step in view["steps"]]

        def left_out(viewer: Exchange) -> int:
            return sum(view["steps_left_out"] for view in views(viewer.content))

        await bench.until(lambda: all(len(steps(one)) + left_out(one) == num_steps for one in viewers))
        await bench.until(lambda: len(views(twin.content)) > 3)
        await disconnect(*viewers)
        for one in viewers:
            assert steps(one) == sorted(set(steps(one)))
            assert max(len(view["steps"]) for view in views(one.content)) <= 256
        times = [[view["time"] for view in views(one.content)] for one in viewers]
        assert len(set(times[0]) & set(times[1])) > 1
        assert set(times[2]) <= set(times[0]) | set(times[1])
        for interval, mine in zip((0.1, 0.1, 0.9), times, strict=True):
            assert all(later - earlier >= EARLY * interval for earlier, later in itertools.pairwise(mine))

    run_null(test)


def test_steps_that_a_slow_viewer_missed_are_counted() -> None:
    pieces = RecentPieces(3)
    assert pieces.since(0) == (b"", 0)
    for number in range(5):
        pieces.add(b"%d" % number)
    pieces.skip(2)
    assert pieces.since(0) == (b"2,3,4", 4)
    assert pieces.since(pieces.count) == (b"", 0)


def test_the_engine_is_not_queried_without_viewers(
    run_null: RunNull, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    plain = EngineSupervisor.watch

    def spy(self: EngineSupervisor, seconds: float, interval: float) -> None:
        asked.append(seconds)
        plain(self, seconds, interval)

    monkeypatch.setattr(EngineSupervisor, "watch", spy)

    async def test(bench: Bench) -> None:
        def recent() -> RecentLatencies | None:
            return bench.state.metrics.recent

        assert recent() is None
        await bench.answer(prompt=[65] * 9, max_tokens=30)
        assert asked == []
        began = time.monotonic()
        viewers = [await watch(bench), await watch(bench)]
        assert recent() is not None
        await bench.until(lambda: len(asked) >= 3)
        assert len(asked) <= 4 + time.monotonic() - began, "a lease is renewed every second"
        await disconnect(*viewers)
        assert asked[-1] == 0
        assert recent() is None
        assert bench.supervisor.on_view is None
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "octavo-view"]
        asked.clear()
        await bench.answer(prompt=[65] * 9, max_tokens=30)
        assert asked == []

    run_null(test)


def test_the_next_engine_is_shown_after_a_death(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        viewer = await watch(bench)
        os.kill(bench.supervisor.engine_pid or 0, signal.SIGKILL)
        await bench.until(lambda: [one["kind"] for one in events(viewer.content)].count("facts") == 2)
        before = len(views(viewer.content))
        await bench.answer(prompt=[65] * 9, max_tokens=100)
        await bench.until(lambda: len(views(viewer.content)) > before + 2)
        late = await watch(bench)
        await disconnect(viewer, late)
        kinds = [one["kind"] for one in events(viewer.content)]
        away = kinds.index("engine")
        assert kinds[:2] == ["facts", "view"]
        assert "view" in kinds[kinds.index("facts", 1) :]
        assert set(kinds[away : kinds.index("facts", 1)]) == {"engine"}
        assert {one["state"] for one in events(viewer.content) if one["kind"] == "engine"} <= {
            "starting",
            "loading",
        }
        assert [one["kind"] for one in events(late.content)][:2] == ["facts", "view"]

    run_null(test)


def test_viewers_are_limited_and_do_not_count_as_requests(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        viewers = [bench.ask(VIEW, None) for _ in range(MAX_WATCHERS)]
        await bench.until(lambda: all(viewer.status for viewer in viewers))
        refused = await bench.ask(VIEW, None).done()
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert "retry-after" in refused.headers
        assert (bench.state.num_open, bench.state.admission.num_sequences) == (0, 0)
        await disconnect(viewers.pop())
        assert views((await bench.ask(f"{VIEW}?count=1", None).done()).content)
        await disconnect(*viewers)
        assert not bench.state.feed.is_watched

    run_null(test)


NONSENSE = (
    *("interval=0", "interval=11", "interval=nan", "interval=x", "interval=1&interval=1", "interval="),
    *("count=0", "count=-1", "count=1.5", "count=inf", "count=x", "replica=r0&replica=r1"),
)


def test_invalid_parameters_are_rejected_by_name(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        for query in NONSENSE:
            refused = await bench.ask(f"{VIEW}?{query}", None).done()
            assert (refused.status, refused.error["param"]) == (400, query.partition("=")[0])
            assert not bench.state.feed.is_watched

    run_null(test)


def test_a_viewer_that_does_not_read_delays_no_other(run_null: RunNull) -> None:
    """Unread views are not queued: the viewer gets the current view when it reads again."""

    async def test(bench: Bench) -> None:
        reads = asyncio.Event()
        bodies: list[bytes] = []

        async def send(message: Message) -> None:
            if message.get("body"):
                bodies.append(message["body"])
                await reads.wait()

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError("this event is never set")

        stream = ViewStream(bench.state, bench.state.feed.open(0.1), 3)
        stuck = asyncio.create_task(stream({"type": "http"}, receive, send))
        reader = await watch(bench)
        await bench.answer(prompt=[65] * 9, max_tokens=300)
        await bench.until(lambda: len(views(reader.content)) > 5)
        assert len(bodies) == 1
        reads.set()
        async with asyncio.timeout(HANG_SECONDS):
            await stuck
        await disconnect(reader)
        seen = views(b"".join(bodies))
        assert len(seen) == 3
        num_steps = sum(len(view["steps"]) + view["steps_left_out"] for view in seen)
        assert num_steps == 300

    run_null(test)


def stream(url: str, seen: list[Json], ended: threading.Event) -> None:
    with httpx.stream("GET", f"{url}{VIEW}?interval=0.1", timeout=HANG_SECONDS) as answer:
        seen.extend(
            json.loads(line.removeprefix("data: "))
            for line in answer.iter_lines()
            if line.startswith("data: ")
        )
    ended.set()


Watch = Callable[[str], tuple[list[Json], threading.Event]]


@pytest.fixture
def watching() -> Iterator[Watch]:
    threads: list[threading.Thread] = []

    def start(url: str) -> tuple[list[Json], threading.Event]:
        seen: list[Json] = []
        ended = threading.Event()
        threads.append(threading.Thread(target=stream, args=(url, seen, ended)))
        threads[-1].start()
        return seen, ended

    yield start
    for thread in threads:
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()


@pytest.mark.xdist_group("server")
def test_answers_do_not_change_while_viewed(start: StartServer, watching: Watch) -> None:
    """Tokens and logprobs are equal on a real engine, and a viewer does not delay shutdown."""
    server = start("--grace", "0").wait_until_ready()
    bodies = [
        {
            "prompt": "abc" * number,
            "max_tokens": 40,
            "seed": number,
            "logprobs": 3,
            "n": 2,
            "ignore_eos": True,
        }
        for number in range(1, 7)
    ]

    def answers() -> list[Json]:
        return [
            [
                (choice["text"], choice["logprobs"])
                for choice in server.post(COMPLETIONS, body).json()["choices"]
            ]
            for body in bodies
        ]

    plain = answers()
    seen, ended = watching(server.url)
    while not seen:
        time.sleep(0.01)
    assert answers() == plain
    deadline = time.monotonic() + HANG_SECONDS
    while sum(len(view["finished"]) for view in seen if view["kind"] == "view") < len(bodies):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert any(view["steps"] for view in seen if view["kind"] == "view")
    server.terminate()
    assert server.process.wait(HANG_SECONDS) == 0
    assert ended.wait(HANG_SECONDS)
