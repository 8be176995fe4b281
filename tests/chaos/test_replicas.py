"""Real engine processes behind one hub: streams move from one to another, and answers stay the same."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.asking import requests_of_every_kind
from chaos.fleet import Fleet, endure, running_fleet
from chaos.patient_supervision import take_no_pause_for_a_fault
from patience import HANG_SECONDS

OPTIONS: dict[str, Any] = {"kv_memory": 1 << 23, "max_running": 32}


def run(model: Path, num_replicas: int, test: Callable[[Fleet], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with (
            asyncio.timeout(4 * HANG_SECONDS),
            running_fleet(str(model), num_replicas, **OPTIONS) as fleet,
        ):
            await test(fleet)

    asyncio.run(bounded())


def test_disturbed_streams_give_the_same_answers(
    tiny_checkpoint: Path, record_property: Callable[[str, object], None]
) -> None:
    async def test(fleet: Fleet) -> None:
        report = await endure(fleet, streams=200, events=8, num_tokens=100)
        record_property("fleet", str(report))
        assert report.num_streams >= 200
        assert report.num_wrong == 0
        assert report.events == {"kill": 2, "stop": 2, "cut": 2, "drain": 2}
        assert report.num_moves > 0
        assert len(fleet.hub) == 0

    run(tiny_checkpoint, 4, test)


def test_replicas_are_removed_added_and_restarted_under_load(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_no_pause_for_a_fault(monkeypatch)

    async def test(fleet: Fleet) -> None:
        requests = requests_of_every_kind(32, 300)
        plain = await fleet.asker.ask_all(requests)
        before = [replica.engine_pid for replica in fleet.replicas.supervisors]
        streams = asyncio.create_task(fleet.asker.ask_all(requests))
        while not all(fleet.hub.request_ids(name) for name in ("r0", "r1")):
            await asyncio.sleep(0.001)
        await fleet.replicas.remove("r0")
        assert fleet.hub.num_moves > 0
        assert await fleet.replicas.add() == "r2"
        await fleet.replicas.replace_all()
        assert await streams == plain
        assert [replica.name for replica in fleet.replicas.supervisors] == ["r1", "r2"]
        after = [replica.engine_pid for replica in fleet.replicas.supervisors]
        assert None not in after
        assert set(before).isdisjoint(after)
        assert [replica.num_restarts for replica in fleet.replicas.supervisors] == [1, 1]
        assert await fleet.asker.ask_all(requests) == plain

    run(tiny_checkpoint, 2, test)


def test_replicas_share_the_size_of_the_kv_cache_and_the_fingerprint(tiny_checkpoint: Path) -> None:
    async def test(fleet: Fleet) -> None:
        facts = [replica.facts for replica in fleet.replicas.supervisors]
        assert facts[0] is not None
        assert facts[0] == facts[1]

    run(tiny_checkpoint, 2, test)


def test_an_engine_with_another_fingerprint_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The checkpoint was replaced on disk: the next engine would continue answers with other tokens."""
    model = tmp_path / "model"
    subprocess.run(["cp", "-r", str(tiny_checkpoint), str(model)], check=True)

    async def test(fleet: Fleet) -> None:
        first, second = fleet.replicas.supervisors
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
        assert second.engine_pid is not None
        os.kill(second.engine_pid, signal.SIGKILL)
        async with asyncio.timeout(HANG_SECONDS):
            while second.num_restarts < 2:  # the first restart ends with a refusal
                await asyncio.sleep(0.01)
            assert not second.is_usable
            while not first.is_usable:
                await asyncio.sleep(0.01)
        await fleet.asker.ask("all is well", requests_of_every_kind(1, 5)[0][1])

    run(model, 2, test)


def test_no_engine_outlives_its_server(tiny_checkpoint: Path) -> None:
    pids: list[int | None] = []

    async def test(fleet: Fleet) -> None:
        pids.extend(replica.engine_pid for replica in fleet.replicas.supervisors)

    run(tiny_checkpoint, 2, test)
    assert len(set(pids)) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
