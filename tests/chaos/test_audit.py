"""Answers are compared between replicas, and a replica that computes wrong results is named."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.fleet import Fleet, running_fleet
from octavo.protocol import SamplingParams
from patience import HANG_SECONDS

NUM_REQUESTS = 200
AT_ONCE = 20
# Weights that are mapped from a cache would be shared with the corrupt engine.
OPTIONS: dict[str, Any] = {"kv_memory": 1 << 23, "max_running": 32, "weight_cache_size": 0}


async def ask_for_audits(fleet: Fleet) -> None:
    """Send requests of both kinds, greedy and sampled, and wait until all audits have ended."""
    for start in range(0, NUM_REQUESTS, AT_ONCE):
        params = [
            SamplingParams(max_tokens=12, temperature=seed % 2, seed=seed, ignore_eos=True)
            for seed in range(start, start + AT_ONCE)
        ]
        await fleet.asker.ask_all([(f"Story {one.seed}", one) for one in params])
        while len(fleet.hub):
            await asyncio.sleep(0.01)


def run_audited(model: Path, monkeypatch: pytest.MonkeyPatch, num_replicas: int, corrupt: str) -> Fleet:
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    async def bounded() -> Fleet:
        async with (
            asyncio.timeout(HANG_SECONDS),
            running_fleet(str(model), num_replicas, audit=0.05, corrupt=corrupt, **OPTIONS) as fleet,
        ):
            await ask_for_audits(fleet)
            return fleet

    return asyncio.run(bounded())


def test_a_flipped_bit_is_found_within_200_requests_and_its_replica_named(
    tiny_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    with caplog.at_level(logging.ERROR):
        counts = run_audited(tiny_checkpoint, monkeypatch, 3, "r1").hub.audit_counts
    record_property("fleet", f"audit of {NUM_REQUESTS} requests at 0.05, r1 has a flipped bit: {counts}")
    assert set(counts.num_wrong) == {"r1"}
    assert "the answer of r1 to request" in caplog.text
    assert counts.num_compared > counts.num_wrong["r1"], "r0 and r2 agree"


def test_sound_replicas_agree(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = run_audited(tiny_checkpoint, monkeypatch, 2, "").hub.audit_counts
    assert counts.num_compared >= 3
    assert not counts.num_wrong
