"""/octavo/fleet: replicas are drained, removed, added and restarted while streams go on."""

import asyncio
import json
import os
import signal

import pytest

from data.json_types import Json
from octavo.cli.main import main
from octavo.errors import FleetError
from octavo.frontend import supervisor as supervising
from octavo.link.folder import EngineSettings
from octavo.membership import local
from octavo.membership.operations import AfterDrain
from octavo.status import OperationState
from patience import HANG_SECONDS
from server.exchange import Exchange
from server.keyed_bench import ALICE, OPS, KeyedBench, RunKeyed
from server.null_bench import COMPLETIONS, Bench, RunNull
from server.process import Server, StartServer, is_alive

pytestmark = pytest.mark.xdist_group("server")

FLEET = "/octavo/fleet"
BODY: dict[str, Json] = {"prompt": [65] * 9, "max_tokens": 200, "seed": 1, "temperature": 0}
STEP = 0.01  # seconds: streams last longer than the commands


class Operator:
    """Sends commands to the application, and waits for their ends."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def status(self) -> Json:
        return json.loads((await self.bench.ask(FLEET, None).done()).content)

    async def names(self) -> list[str]:
        return [replica["name"] for replica in (await self.status())["replicas"]]

    async def send(self, command: str, **body: Json) -> tuple[int, Json]:
        answer = await self.bench.ask(f"{FLEET}/{command}", body).done()
        return answer.status, json.loads(answer.content)

    async def run(self, command: str, **body: Json) -> Json:
        """Return the operation when it has ended."""
        code, operation = await self.send(command, **body)
        assert code == 202, operation
        return await self.end_of(operation["number"])

    async def end_of(self, number: int) -> Json:
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                operations = {one["number"]: one for one in (await self.status())["operations"]}
                if operations[number]["state"] in ("done", "failed"):
                    return operations[number]
                await asyncio.sleep(0.005)


async def streams(bench: Bench, number: int) -> list[Exchange]:
    """Start streams, and wait until each has begun."""
    asked = [bench.ask(COMPLETIONS, BODY | {"stream": True}) for _ in range(number)]
    await bench.until(lambda: all(len(one.writes) > 3 for one in asked))
    return asked


async def texts(asked: list[Exchange]) -> set[str]:
    found = set()
    for one in asked:
        answer = await one.done()
        events = [json.loads(event[6:]) for event in answer.content.decode().split("\n\n")[:-2]]
        found.add("".join(event["choices"][0]["text"] for event in events if event["choices"]))
    return found


def test_streams_go_on_while_replicas_are_removed_added_and_restarted(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        operator = Operator(bench)
        plain = {(await bench.answer(COMPLETIONS, **BODY))["choices"][0]["text"]}
        asked = await streams(bench, 8)
        steps = (await bench.scrape())("step_seconds_count")
        assert bench.hub.request_ids("r0")
        removed = await operator.end_of(bench.state.operations.drain("r0", AfterDrain.REMOVE).number)
        assert (removed["state"], removed["problem"]) == ("done", None)
        assert await operator.names() == ["r1"]
        added = await operator.run("add")
        assert (added["state"], added["replica"]) == ("done", "r2"), "a name is never used again"
        fleet = await operator.status()
        assert {replica["state"] for replica in fleet["replicas"]} == {"ready"}
        restarted = await operator.run("restart")
        assert restarted["restarted"] == ["r1", "r2"]
        assert await texts(asked) == plain
        fleet = await operator.status()
        assert [replica["restarts"] for replica in fleet["replicas"]] == [1, 1]
        assert fleet["moves"] > 0
        scrape = await bench.scrape()
        assert scrape("step_seconds_count") > steps, "counts of a removed replica stay"
        assert scrape("engine_restarts_total") == 0, "no engine has died: no alarm"
        assert (await bench.ask("/readyz", None).done()).status == 200

    run_null(test, num_replicas=2, step_seconds=STEP)


def test_the_only_replica_can_be_restarted_but_not_removed(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        operator, pid = Operator(bench), bench.supervisor.engine_pid
        asked = await streams(bench, 2)
        code, answer = await operator.send("drain", replica="r0", then="remove")
        assert (code, answer["error"]["code"]) == (409, "fleet_conflict")
        assert "Add one first" in answer["error"]["message"]
        assert (await operator.run("drain", replica="r0"))["state"] == "done"
        assert bench.supervisor.engine_pid != pid
        assert len(await texts(asked)) == 1

    run_null(test, step_seconds=STEP)


def test_a_replica_is_removed_only_when_another_one_is_usable(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        operator = Operator(bench)
        second = bench.replicas.supervisors[1]
        right, second._settings = second._settings, EngineSettings({"max_running": "wrong"})
        assert second.engine_pid is not None
        os.kill(second.engine_pid, signal.SIGKILL)
        await bench.until(lambda: second.num_restarts)
        operations = bench.state.operations
        number = operations.drain("r0", AfterDrain.REMOVE).number
        await bench.until(lambda: second.num_restarts > 1)
        assert (await bench.answer(COMPLETIONS, **BODY))["usage"]["completion_tokens"] == 200
        assert operations.status()[0].state == OperationState.RUNNING
        assert await operator.names() == ["r0", "r1"]
        second._settings = right
        assert (await operator.end_of(number))["state"] == "done"
        assert await operator.names() == ["r1"]

    run_null(test, num_replicas=2)


@pytest.mark.parametrize("then", AfterDrain)
def test_after_a_cancelled_drain_a_replica_gets_requests_again(run_null: RunNull, then: AfterDrain) -> None:
    """The server shuts down: requests that were accepted and not sent yet need an engine."""

    async def test(bench: Bench) -> None:
        async def drain(supervisor: object, lonely_seconds: float) -> None:
            bench.hub.drain("r0")
            await asyncio.Event().wait()

        bench.replicas._drain = drain  # type: ignore[method-assign]
        operations = bench.state.operations
        operations.drain("r0", then)
        await bench.until(lambda: bench.hub.usable == ["r1"])
        await operations.close()
        assert bench.hub.usable == ["r0", "r1"]

    run_null(test, num_replicas=2)


def test_commands_are_queued_and_count_for_later_ones(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        operator = Operator(bench)
        asked = await streams(bench, 6)
        operations = bench.state.operations
        operations.drain("r0", AfterDrain.REMOVE)  # none of them begins before this task waits
        operations.drain("r1", AfterDrain.REMOVE)
        with pytest.raises(FleetError, match="no other replica would be left"):
            operations.drain("r2", AfterDrain.REMOVE)
        with pytest.raises(FleetError, match="is being drained already"):
            operations.drain("r0", AfterDrain.RESTART)
        operations.restart()
        with pytest.raises(FleetError, match="are being restarted already"):
            operations.restart()
        await bench.until(lambda: operations.status()[0].state != OperationState.QUEUED)
        assert [one.state for one in operations.status()] == ["running", "queued", "queued"]
        assert [(await operator.end_of(number))["state"] for number in (1, 2, 3)] == ["done"] * 3
        assert await operator.names() == ["r2"]
        assert len(await texts(asked)) == 1

    run_null(test, num_replicas=3, step_seconds=STEP)


def test_a_rolling_restart_stops_at_an_engine_that_does_not_become_ready(
    run_null: RunNull, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        operator = Operator(bench)
        first, second = bench.replicas.supervisors
        pid, right = second.engine_pid, first._settings
        first._settings = EngineSettings({"max_running": "wrong"}, log_level="critical")
        operation = await operator.run("restart")
        assert (operation["state"], operation["restarted"]) == ("failed", [])
        assert "the new engine of r0 did not become ready" in operation["problem"]
        assert second.engine_pid == pid
        assert (await operator.status())["replicas"][0]["state"] == "restarting"
        assert (await bench.answer(COMPLETIONS, **BODY))["usage"]["completion_tokens"] == 200
        first._settings = right
        await bench.until(lambda: first.is_usable)

    run_null(test, num_replicas=2)


def test_a_replica_that_cannot_start_is_not_added(run_null: RunNull, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "MAX_FAILED_STARTS", 1)

    async def test(bench: Bench) -> None:
        operator, replicas = Operator(bench), bench.replicas
        right = replicas._settings
        replicas._settings = EngineSettings({"max_running": "wrong"}, log_level="critical")
        operation = await operator.run("add")
        assert (operation["state"], operation["replica"]) == ("failed", "r1")
        assert "r1 was not added" in operation["problem"]
        assert await operator.names() == ["r0"]
        replicas._settings = right
        assert (await operator.run("add"))["replica"] == "r2"

        def full(*_: object) -> None:
            raise FleetError("no memory: free some")

        monkeypatch.setattr(local, "check_room", full)
        code, answer = await operator.send("add")
        assert (code, answer["error"]["message"]) == (409, "no memory: free some")

    run_null(test)


def test_commands_for_unknown_replicas_and_with_wrong_fields_are_rejected(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        operator = Operator(bench)
        code, answer = await operator.send("drain", replica="r7")
        assert (code, answer["error"]["code"]) == (404, "replica_not_found")
        assert answer["error"]["message"].endswith("the replicas are r0")
        assert (await operator.send("drain", replica="r0", then="explode"))[0] == 400
        assert (await operator.send("drain"))[0] == 400
        bench.state.is_draining = True
        assert (await operator.send("restart"))[0] == 503

    run_null(test)


def test_the_fleet_is_for_operators(run_keyed: RunKeyed) -> None:
    async def test(bench: KeyedBench) -> None:
        assert await bench.status(ALICE, FLEET) == 403
        assert await bench.status("sk-nobody", FLEET) == 401
        assert await bench.status(OPS, FLEET) == 200
        for command in ("drain", "add", "restart"):
            assert await bench.status(ALICE, f"{FLEET}/{command}", {"replica": "r0"}) == 403
        assert bench.bench.state.operations.status() == ()

    run_keyed(test)


def test_a_shutdown_in_the_middle_of_commands_ends_all_engines(run_null: RunNull) -> None:
    pids: list[int] = []

    async def test(bench: Bench) -> None:
        operator = Operator(bench)
        await streams(bench, 4)
        operations = bench.state.operations
        operations.drain("r0", AfterDrain.RESTART)
        operations.drain("r1", AfterDrain.RESTART)
        operations.add()
        await bench.until(lambda: operations.status()[0].state != OperationState.QUEUED)
        pids.extend(one.engine_pid for one in bench.replicas.supervisors if one.engine_pid is not None)
        await operations.close()
        states = [one["state"] for one in (await operator.status())["operations"]]
        assert states == ["failed"] * 3
        with pytest.raises(FleetError, match="shutting down"):
            operations.add()

    run_null(test, num_replicas=2, step_seconds=STEP)
    assert pids
    assert not any(is_alive(pid) for pid in pids)


# -- the commands, with a real server ------------------------------------------------------------------------


def until_ready(server: Server, *names: str) -> None:
    for name in names:
        server.wait_for_log(f"{name}: the engine is ready")


def test_the_fleet_commands(start: StartServer, capfd: pytest.CaptureFixture[str]) -> None:
    server = start("--replicas", "2", "--api-key", "sk-ops").wait_until_ready()
    until_ready(server, "r0", "r1")

    def octavo(*words: str, key: str = "sk-ops") -> tuple[int, str, str]:
        flags = ["--url", server.url, *(["--api-key", key] if key else [])]
        code = main(["fleet", *words, *flags])
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    code, shown, _ = octavo("status")
    assert code == 0
    assert [line.split()[:2] for line in shown.splitlines()[2:4]] == [["r0", "ready"], ["r1", "ready"]]
    code, _, problem = octavo("status", key="")
    assert (code, "set one with --api-key" in problem) == (1, True)
    code, _, problem = octavo("drain", "r5")
    assert (code, "the replicas are r0, r1" in problem) == (1, True)
    code, shown, progress = octavo("drain", "r0", "--remove")
    assert (code, shown[:14]) == (0, "r0 was removed")
    code, _, problem = octavo("drain", "r1", "--remove")
    assert (code, "Add one first" in problem) == (1, True)
    code, shown, progress = octavo("add")
    assert (code, shown[:11]) == (0, "r2 is ready")
    assert "r2: its engine is being loaded" in progress
    assert "octavo engine r2: " in server.log
    code, shown, _ = octavo("restart", "--json", "--no-wait")
    assert (code, json.loads(shown)["kind"]) == (0, "restart")
    server.wait_for_log("r1: the engine was drained")
    server.process.send_signal(signal.SIGTERM)  # in the middle of a restart
    assert server.process.wait(HANG_SECONDS) == 0
    code, _, problem = octavo("status")
    assert (code, "start one with `octavo serve MODEL`" in problem) == (1, True)
    assert list(server.temporary.iterdir()) == []
