"""A replica on another machine whose answers are not those that its fingerprint promises is expelled."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos.agents import KeyFiles, LocalAgent, until
from chaos.asking import Asker, Request
from chaos.patient_supervision import take_no_pause_for_a_fault
from octavo.checkpoint import open_checkpoint
from octavo.fleet.router import Router
from octavo.frontend.audits import Audits
from octavo.frontend.engine_process import ENGINE_MODULE
from octavo.frontend.hub import Hub
from octavo.membership.addresses import FixedAddresses
from octavo.membership.remote import RemoteReplicas
from octavo.protocol import SamplingParams
from octavo.status import ReplicaState
from octavo.text.tokenizer import Tokenizer
from patience import HANG_SECONDS

MODULES = {"m0": ENGINE_MODULE, "m1": "corrupt_engine", "m2": ENGINE_MODULE}
CORRUPT = "m1"
# Greedy and sampled. Enough that every replica gets some.
REQUESTS: list[Request] = [
    (f"Story {seed}", SamplingParams(max_tokens=12, temperature=seed % 2, seed=seed, ignore_eos=True))
    for seed in range(20)
]


@asynccontextmanager
async def front_end_of(
    agents: list[LocalAgent], keys: KeyFiles, audit: float
) -> AsyncIterator[RemoteReplicas]:
    """Start a front end, and yield it when it can use the replicas of all agents."""
    addresses = FixedAddresses(tuple(sorted(agent.address for agent in agents)))
    front_end = RemoteReplicas(addresses, keys.front_end, lambda: Hub(Router.with_prefixes(), Audits(audit)))
    front_end.start()
    try:
        await until(lambda: len([one for one in front_end.replicas if one.is_usable]) == len(agents))
        yield front_end
    finally:
        await front_end.close()


async def check_expelled(model: Path, folder: Path) -> None:
    keys, tokenizer = KeyFiles(folder), Tokenizer(open_checkpoint(str(model)).text)
    # Weights that are mapped from a cache would be shared with the corrupt engine.
    options: dict[str, Any] = {
        "model": str(model),
        "kv_memory": 1 << 23,
        "weight_cache_size": 0,
        "threads": 1,
    }
    async with AsyncExitStack() as stack:
        agents = [LocalAgent(name, keys, module=module, **options) for name, module in MODULES.items()]
        for agent in agents:
            stack.push_async_callback(agent.close)
            agent.start()
        async with front_end_of(agents[:1], keys, 0.0) as sound:
            asker = Asker(sound.hub, tokenizer, lambda: sound.facts, secrets.token_hex(4))
            expected = await asker.ask_all(REQUESTS)
        front_end = await stack.enter_async_context(front_end_of(agents, keys, 1.0))
        assert len({one.fingerprint for one in front_end.status()}) == 1, "nothing else shows the fault"
        asker = Asker(front_end.hub, tokenizer, lambda: front_end.facts, secrets.token_hex(4))
        while front_end.status()[1].state is not ReplicaState.FAILED:
            received = await asker.ask_all(REQUESTS)
            assert not [choice[-1] for _, choices in received for choice in choices if choice[-1]], "errors"
        assert set(front_end.audit_counts.num_outvoted) == {CORRUPT}
        assert "an audit found" in (front_end.status()[1].problem or "")
        assert await asker.ask_all(REQUESTS) == expected
        expelled = agents[1]
        await until(lambda: expelled.relay.num_requests == 0)
        num_tokens = expelled.supervisor.tally.counts.tokens_sampled
        for _ in range(2):
            assert await asker.ask_all(REQUESTS) == expected
        await until(lambda: sorted(front_end.hub.usable) == ["m0", "m2"])
        assert expelled.supervisor.tally.counts.tokens_sampled == num_tokens, "it computes nothing more"


def test_a_replica_with_a_flipped_bit_is_expelled(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    take_no_pause_for_a_fault(monkeypatch)  # the next engine of a replica is not expelled

    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            await check_expelled(tiny_checkpoint, tmp_path)

    asyncio.run(bounded())
