"""Replicas behind agents: whatever happens to agents, engines and connections, answers stay the same."""

import asyncio
import contextlib
import math
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import zmq

from chaos.agents import AgentFleet, LocalAgent, agent_fleet, until
from chaos.asking import Asker
from chaos.patient_supervision import take_no_pause_for_a_fault
from octavo.checkpoint import open_checkpoint
from octavo.errors import FleetError
from octavo.frontend.output import RequestOutput
from octavo.link.agent_messages import (
    AGENT,
    Attach,
    Join,
    LeaseExpired,
    Refusal,
    Renew,
    decode_from_agent,
    encode_agent,
)
from octavo.link.fleet_key import FleetKey
from octavo.link.socket_reader import LinkLost, SocketReader
from octavo.link.wire import encode
from octavo.membership import pools, remote_replica
from octavo.membership.addresses import FixedAddresses
from octavo.membership.remote import RemoteReplicas
from octavo.membership.remote_replica import FleetLink
from octavo.observe.catalog import REPLICA_REFUSED
from octavo.observe.collector import _of_replicas
from octavo.protocol import Abort, SamplingParams
from octavo.server import budget_keepers
from octavo.server.http.errors import ApiError
from octavo.server.http.key_file import KeyLimits
from octavo.server.key_limits import KeyAccounts, KeyedRequest
from octavo.status import ReplicaState
from octavo.text.tokenizer import Tokenizer
from patience import HANG_SECONDS

NUM_TOKENS = 400
ENDLESS = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=1)

RunFleet = Callable[..., None]


@pytest.fixture
def run_fleet(tmp_path: Path) -> RunFleet:
    def run(test: Callable[[AgentFleet], Awaitable[None]], **options: object) -> None:
        async def main() -> None:
            async with agent_fleet(tmp_path, **options) as fleet:  # type: ignore[arg-type]
                await test(fleet)

        asyncio.run(main())

    return run


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Tokenizer:
    return Tokenizer(open_checkpoint(str(tiny_checkpoint)).text)


def ask_all(
    front_end: RemoteReplicas, tokenizer: Tokenizer, number: int
) -> list[asyncio.Task[RequestOutput]]:
    asker = Asker(front_end.hub, tokenizer, lambda: front_end.facts, secrets.token_hex(4))
    return [asyncio.create_task(asker.ask(f"Story {index}", ENDLESS)) for index in range(number)]


async def until_begun(front_end: RemoteReplicas) -> None:
    """Wait until every replica has computed tokens of requests."""
    await until(lambda: all(one.tally.counts.tokens_sampled > 50 for one in front_end.replicas))


def check(results: list[RequestOutput]) -> None:
    """The token at each position is known: see `null_engine`."""
    for result in results:
        first = result.choices[0].token_ids[0]
        expected = tuple(64 + (first - 64 + index) % 128 for index in range(NUM_TOKENS))
        assert result.choices[0].token_ids == expected
        assert result.choices[0].error is None


async def kill_engine(agent: LocalAgent) -> None:
    assert agent.supervisor.engine_pid is not None
    os.kill(agent.supervisor.engine_pid, signal.SIGKILL)


async def stop_engine(agent: LocalAgent) -> None:
    assert agent.supervisor.engine_pid is not None
    os.kill(agent.supervisor.engine_pid, signal.SIGSTOP)


async def fall_silent(agent: LocalAgent) -> None:
    agent.fall_silent()


async def close(agent: LocalAgent) -> None:
    await agent.close()


async def drain(agent: LocalAgent) -> None:
    await agent.relay.drain(until_idle=True)
    assert agent.relay.num_requests == 0


@pytest.mark.parametrize("disturb", [kill_engine, stop_engine, fall_silent, close, drain])
def test_streams_go_on_elsewhere(
    run_fleet: RunFleet, tokenizer: Tokenizer, disturb: Callable[[LocalAgent], Awaitable[None]]
) -> None:
    async def test(fleet: AgentFleet) -> None:
        asked = ask_all(fleet.front_end, tokenizer, 8)
        await until_begun(fleet.front_end)
        await disturb(fleet.agents[0])
        check(await asyncio.gather(*asked))
        assert fleet.front_end.hub.num_moves > 0
        assert fleet.front_end.hub.link("m0") is None or not fleet.front_end.hub.request_ids("m0")

    run_fleet(test, step_seconds=0.01)  # 4 s for a stream: it has not ended before it is disturbed


def test_an_agent_that_comes_back_is_used_again(run_fleet: RunFleet, tokenizer: Tokenizer) -> None:
    async def test(fleet: AgentFleet) -> None:
        lost, front_end = fleet.agents[0], fleet.front_end
        port = int(lost.address.rpartition(":")[2])
        await lost.close()
        await until(lambda: front_end.find("m0").state.value == "unreachable")
        assert front_end.status()[0].state is ReplicaState.UNREACHABLE
        check(await asyncio.gather(*ask_all(front_end, tokenizer, 2)))
        again = LocalAgent("m0", fleet.keys, port, max_model_len=8192)
        again.start()
        try:
            await until(lambda: front_end.find("m0").is_usable)
            while not front_end.find("m0").tally.counts.tokens_sampled:
                check(await asyncio.gather(*ask_all(front_end, tokenizer, 8)))
        finally:
            await again.close()

    run_fleet(test)


def test_without_any_replica_requests_wait_for_one_of_their_fingerprint(
    run_fleet: RunFleet, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MAX_ORPHAN_SECONDS", HANG_SECONDS)

    async def test(fleet: AgentFleet) -> None:
        (only,), front_end = fleet.agents, fleet.front_end
        asked = ask_all(front_end, tokenizer, 4)
        await until_begun(front_end)
        await only.close()
        await until(lambda: not front_end.hub.usable)
        assert len(front_end.hub) == 4
        again = LocalAgent("m0", fleet.keys, int(only.address.rpartition(":")[2]))
        again.start()
        try:
            check(await asyncio.gather(*asked))
        finally:
            await again.close()

    run_fleet(test, num_agents=1, step_seconds=0.02)


def test_front_ends_share_replicas_and_one_that_is_gone_leaves_nothing_behind(
    run_fleet: RunFleet, tokenizer: Tokenizer
) -> None:
    async def test(fleet: AgentFleet) -> None:
        first, second = fleet.front_ends
        endless = ask_all(first, tokenizer, 4)
        asked = ask_all(second, tokenizer, 4)
        await until(lambda: all(agent.relay.num_front_ends == 2 for agent in fleet.agents))
        await until_begun(first)
        for task in first._running.values():  # as if its process had been killed
            task.cancel()
        check(await asyncio.gather(*asked))
        await until(lambda: all(agent.relay.num_front_ends == 1 for agent in fleet.agents))
        await until(lambda: all(agent.relay.num_requests == 0 for agent in fleet.agents))
        for request in endless:
            request.cancel()
        await asyncio.gather(*endless, return_exceptions=True)

    run_fleet(test, num_front_ends=2)


def test_a_silent_front_end_loses_its_lease_and_connects_again(
    run_fleet: RunFleet, tokenizer: Tokenizer
) -> None:
    async def test(fleet: AgentFleet) -> None:
        (agent,), front_end = fleet.agents, fleet.front_end
        asked = ask_all(front_end, tokenizer, 2)
        await until_begun(front_end)
        (silent,) = agent.relay._front_ends.values()

        def has_left() -> bool:
            silent.heard_at = -math.inf  # every time: the front end does send messages, which renew the lease
            return silent not in agent.relay._front_ends.values()

        await until(has_left)
        check(await asyncio.gather(*asked))
        await until(lambda: agent.relay.num_front_ends == 1)

    run_fleet(test, num_agents=1)


def test_a_message_for_an_earlier_engine_is_dropped(run_fleet: RunFleet) -> None:
    """Otherwise the next engine would compute a request that its front end asks for again."""

    async def test(fleet: AgentFleet) -> None:
        (agent,) = fleet.agents
        peer = await connected(fleet, "other")
        await tell(peer, Attach(agent.relay._epoch + 1))
        peer.socket.send(encode(Abort("r1")))
        known = next(one for one in agent.relay._front_ends.values() if one.name == "other")
        await until(lambda: known.heard_at > 0 and known.engine is None)
        await tell(peer, Attach(agent.relay._epoch))
        await until(lambda: known.engine is not None)
        peer.close()

    run_fleet(test, num_agents=1)


def test_a_peer_without_a_lease_is_told_so(run_fleet: RunFleet) -> None:
    async def test(fleet: AgentFleet) -> None:
        peer = await connected(fleet, None)
        await tell(peer, Attach(1))
        frames = await peer.next_frames()
        assert isinstance(decode_from_agent(frames[1].bytes), LeaseExpired)
        peer.close()

    run_fleet(test, num_agents=1)


def test_malformed_messages_of_an_allowed_peer_change_nothing(
    run_fleet: RunFleet, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_no_pause_for_a_fault(monkeypatch)

    async def test(fleet: AgentFleet) -> None:
        peer = await connected(fleet, "other")
        for frames in ([b""], [AGENT], [AGENT, b""], [AGENT, b"\xc1"], [b"x", b"y"], [b"1", b"2", b"3"]):
            peer.socket.send_multipart(frames)
        check(await asyncio.gather(*ask_all(fleet.front_end, tokenizer, 2)))
        assert fleet.agents[0].supervisor.num_restarts == 0
        peer.close()

    run_fleet(test, num_agents=1)


def test_a_front_end_whose_key_is_removed_is_dropped(run_fleet: RunFleet, tmp_path: Path) -> None:
    async def test(fleet: AgentFleet) -> None:
        (agent,) = fleet.agents
        other = agent_messages_key(tmp_path)
        fleet.keys.replica.write_text(other)
        await until(lambda: agent.relay.num_front_ends == 0)
        await until(lambda: agent.gate.refused[Refusal.UNKNOWN_KEY] > 0)
        assert not fleet.front_end.find("m0").is_usable

    run_fleet(test, num_agents=1)


def test_front_ends_know_which_connections_a_replica_has_refused(run_fleet: RunFleet) -> None:
    async def test(fleet: AgentFleet) -> None:
        host, _, port = fleet.agents[0].address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        await until(lambda: fleet.front_end.status()[0].refused_connections.get("handshake"))
        metrics = dict(_of_replicas(fleet.front_end.status()))
        expected = {("m0", "unknown_key"): 0, ("m0", "handshake"): 1, ("m0", "unfinished"): 0}
        assert metrics[REPLICA_REFUSED] == expected

    run_fleet(test, num_agents=1)


def test_an_engine_with_wrong_answers_is_expelled_until_the_next_one(
    run_fleet: RunFleet, tokenizer: Tokenizer
) -> None:
    async def test(fleet: AgentFleet) -> None:
        front_end = fleet.front_end
        front_end.hub.audit_counts.num_outvoted["m0"] += 1
        await until(lambda: front_end.status()[0].state is ReplicaState.FAILED)
        await until(lambda: front_end.hub.usable == ["m1"])
        check(await asyncio.gather(*ask_all(front_end, tokenizer, 2)))
        await kill_engine(fleet.agents[0])
        await until(lambda: front_end.hub.usable == ["m1", "m0"])

    run_fleet(test)


def test_a_replica_that_does_not_fit_is_tried_again_later(
    run_fleet: RunFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_replica, "RECHECK_SECONDS", 0.1)

    async def test(fleet: AgentFleet) -> None:
        first, front_end = fleet.agents[0], fleet.front_end
        second = LocalAgent("m1", fleet.keys, max_model_len=4096)
        second.start()
        try:
            front_end._source = FixedAddresses((first.address, second.address))
            await until(lambda: len(front_end.replicas) == 2)
            await until(lambda: front_end.status()[1].state is ReplicaState.FAILED)
            assert "--max-model-len 8192" in (front_end.status()[1].problem or "")
            await first.close()  # nothing that was accepted needs more any longer
            await until(lambda: front_end.hub.usable == ["m1"])
            assert front_end.facts is not None
            assert front_end.facts.max_model_len == 4096
        finally:
            await second.close()

    run_fleet(test, num_agents=1)


def test_an_engine_that_dies_while_it_is_drained_ends_the_drain(run_fleet: RunFleet) -> None:
    async def test(fleet: AgentFleet) -> None:
        (agent,) = fleet.agents
        silent = await connected(fleet, "a front end that never says that it has drained")
        for front_end in agent.relay._front_ends.values():
            if front_end.engine is None:
                agent.relay._attach(front_end)
        draining = asyncio.create_task(agent.relay.drain(until_idle=False))
        await asyncio.sleep(0)
        await kill_engine(agent)
        await draining
        await until(lambda: fleet.front_end.find("m0").is_usable)
        silent.close()

    run_fleet(test, num_agents=1)


def test_commands_of_the_operator(run_fleet: RunFleet) -> None:
    async def test(fleet: AgentFleet) -> None:
        front_end = fleet.front_end
        with pytest.raises(FleetError, match="SIGTERM"):
            await front_end.remove("m0")
        with pytest.raises(FleetError, match="start `octavo replica` there"):
            await front_end.add(lambda name: None)
        restarting = asyncio.create_task(front_end.restart("m0"))
        await until(lambda: fleet.agents[0].num_restart_commands == 1)
        await kill_engine(fleet.agents[0])
        await restarting

    run_fleet(test)


def test_two_replicas_with_one_name_are_told_apart_and_one_with_two_addresses_is_used_once(
    run_fleet: RunFleet,
) -> None:
    async def test(fleet: AgentFleet) -> None:
        first, second = fleet.front_end.replicas
        assert fleet.front_end._name_for(first, second.name, "another") == f"{second.name}@{first.address}"
        assert fleet.front_end._name_for(second, second.name, "another") == second.name
        with pytest.raises(LinkLost, match="list it once"):
            fleet.front_end._name_for(first, first.name, second.agent_id)

    run_fleet(test)


def test_the_limit_of_a_key_holds_over_all_front_ends(
    run_fleet: RunFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_keepers, "ANSWER_SECONDS", HANG_SECONDS)  # a slow keeper is not dead
    limit = 60

    async def admitted(accounts: KeyAccounts) -> int:
        try:
            await KeyedRequest().begin(accounts.of("alice"), is_counted=True)
        except ApiError:  # 429
            return 0
        return 1

    async def test(fleet: AgentFleet) -> None:
        began = time.monotonic()
        everybody = [KeyAccounts(transport=front_end.keepers) for front_end in fleet.front_ends]
        for accounts in everybody:
            accounts.update({"alice": KeyLimits(requests_per_minute=limit)})
        leasing = [asyncio.create_task(accounts.keep_leases()) for accounts in everybody]
        asked = [admitted(accounts) for _ in range(limit) for accounts in everybody]
        total = sum(await asyncio.gather(*asked))
        for task in leasing:
            task.cancel()
        await asyncio.gather(*leasing, return_exceptions=True)
        minutes = (time.monotonic() - began) / 60  # the window moves if the machine is slow
        assert 0.9 * limit <= total <= 1.1 * limit * (1 + minutes)

    run_fleet(test, num_front_ends=4)


def agent_messages_key(folder: Path) -> str:
    """Return the text of a key file that allows another front end."""
    key = FleetKey.read(folder / "replica.key")
    return FleetKey(key.secret, key.public, {bytes(range(32)): "other"}).text("of a test")


async def connected(fleet: AgentFleet, name: str | None) -> SocketReader:
    """Return a connection to the first agent, as a front end of this name; None: it has not joined."""
    key = FleetKey.read(fleet.keys.front_end)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = FleetLink(context, key, name or "", Renew)
    while True:
        reader = link.open(fleet.agents[0].address, next(iter(key.allowed)))
        try:
            async with asyncio.timeout(remote_replica.JOIN_SECONDS):
                await reader.wait_until_connected()
                if name is not None:
                    await tell(reader, Join(name, 2))
                    await reader.next_frames()
            return reader
        except (TimeoutError, LinkLost):  # a pause in the handshake; the socket does not try again
            reader.close()


async def tell(reader: SocketReader, message: msgspec.Struct) -> None:
    reader.socket.send_multipart((AGENT, encode_agent(message)))
    reader.look()
