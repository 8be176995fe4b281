"""Answers are compared between replicas, and a replica that computes wrong results is named."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.fleet import Fleet, running_fleet
from chaos.patient_supervision import take_no_pause_for_a_fault
from octavo.observe.audit_counts import AuditCounts
from octavo.protocol import SamplingParams
from patience import HANG_SECONDS

AT_ONCE = 20
# Weights that are mapped from a cache would be shared with the corrupt engine.
OPTIONS: dict[str, Any] = {"kv_memory": 1 << 23, "max_running": 32, "weight_cache_size": 0}


async def ask_for_audits(fleet: Fleet, until: Callable[[AuditCounts], bool]) -> int:
    """Send greedy and sampled requests, and wait for their audits, until there are enough. Return how many.

    If the machine is so slow that engines are suspected, requests move and are not audited.
    """
    num_asked = 0
    while not until(fleet.hub.audit_counts):
        params = [
            SamplingParams(max_tokens=12, temperature=seed % 2, seed=seed, ignore_eos=True)
            for seed in range(num_asked, num_asked + AT_ONCE)
        ]
        await fleet.asker.ask_all([(f"Story {one.seed}", one) for one in params])
        num_asked += AT_ONCE
        while len(fleet.hub):
            await asyncio.sleep(0.01)
    return num_asked


def run_audited(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    until: Callable[[AuditCounts], bool],
    *,
    num_replicas: int,
    corrupt: str = "",
) -> tuple[int, AuditCounts]:
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    take_no_pause_for_a_fault(monkeypatch)  # without the third replica, nobody knows which of two is wrong

    async def bounded() -> tuple[int, AuditCounts]:
        async with (
            asyncio.timeout(HANG_SECONDS),
            running_fleet(str(model), num_replicas, audit=0.05, corrupt=corrupt, **OPTIONS) as fleet,
        ):
            return await ask_for_audits(fleet, until), fleet.hub.audit_counts

    return asyncio.run(bounded())


def test_a_replica_with_a_flipped_bit_is_named(
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    """Within 200 requests, if the machine is fast enough."""
    with caplog.at_level(logging.ERROR):
        num_asked, counts = run_audited(
            tiny_checkpoint,
            monkeypatch,
            lambda counts: bool(counts.num_wrong) or counts.num_compared >= 30,
            num_replicas=3,
            corrupt="r1",
        )
    record_property(
        "fleet", f"audit of 0.05 of the requests: r1 was named after {num_asked} requests: {counts}"
    )
    assert set(counts.num_wrong) == {"r1"}
    assert "the answer of r1 to request" in caplog.text


def test_sound_replicas_agree(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, counts = run_audited(
        tiny_checkpoint, monkeypatch, lambda counts: counts.num_compared >= 5, num_replicas=2
    )
    assert not counts.num_wrong
