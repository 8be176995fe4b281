"""How long an agent waits before it replaces an engine that has died."""

import asyncio
import logging
import os
import re
import secrets
import signal
from pathlib import Path

import pytest

from chaos.agents import AgentFleet, agent_fleet, until
from chaos.asking import Asker
from chaos.patient_supervision import take_no_pause_for_a_fault
from octavo.checkpoint import open_checkpoint
from octavo.protocol import SamplingParams
from octavo.text.tokenizer import Tokenizer


async def kill_engine(fleet: AgentFleet) -> None:
    """Kill the engine, and wait until the front end can use the next one."""
    (agent,), front_end = fleet.agents, fleet.front_end
    pid, epoch = agent.supervisor.engine_pid, front_end.find("m0").epoch
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: front_end.find("m0").epoch > epoch and front_end.find("m0").is_usable)


def test_an_engine_that_has_generated_tokens_is_replaced_at_once(
    tiny_checkpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent sees no outputs: the front end gets them from the engine."""
    take_no_pause_for_a_fault(monkeypatch)
    tokenizer = Tokenizer(open_checkpoint(str(tiny_checkpoint)).text)
    params = SamplingParams(max_tokens=8, ignore_eos=True, seed=1)

    async def main() -> None:
        async with agent_fleet(tmp_path, num_agents=1) as fleet:
            await kill_engine(fleet)
            await kill_engine(fleet)
            front_end, tally = fleet.front_end, fleet.agents[0].supervisor.tally
            asker = Asker(front_end.hub, tokenizer, lambda: front_end.facts, secrets.token_hex(4))
            await asker.ask("Story", params)
            await until(lambda: tally.counts.tokens_sampled > 0)
            await kill_engine(fleet)
            await kill_engine(fleet)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    delays = re.findall(r"starting the next one in (\S+) s", caplog.text)
    assert delays == ["0.2", "0.4", "0.0", "0.2"]
