"""Requests on several replicas: whatever happens to their engines and links, answers are the same."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.engine_facts import FACTS, IDLE_STATS
from octavo.fleet.router import Router
from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import ENGINE_HUNG, ENGINE_LOST, MAX_REPLAYS
from octavo.frontend.loss import NOBODYS_FAULT, Loss
from octavo.frontend.output import RequestOutput
from octavo.link.heartbeat import request_number
from octavo.protocol import Abort, EngineOutputs, FinishReason, GenerateRequest, TokenOutput
from octavo.text.tokenizer import Tokenizer
from unit.frontend.scripted_hub import (
    LETTER,
    PROMPT,
    Inbox,
    ScriptedChannel,
    asked,
    connected,
    ended,
    request,
    token,
)
from unit.frontend.test_in_flight import outputs_of

KINDS: list[dict[str, Any]] = [
    {"seed": 1},
    {"seed": 2, "n": 3, "logprobs": 1},
    {"seed": 3, "prompt_logprobs": 1, "logprobs": 1},
    {"seed": 4, "stop": ("bc",)},
]


# Two prompts fit, so that some requests wait in the hub.
SMALL_CREDIT = msgspec.structs.replace(FACTS, prompt_credit=2 * len(PROMPT))


class WorkingEngine:
    """Handles messages when it runs a step, as a real one does. The test delivers its outputs."""

    def __init__(self, hub: Hub, name: str, roll: Callable[[int], int]) -> None:
        self._hub = hub
        self._name = name
        self._roll = roll
        self._inbox: deque[GenerateRequest | Abort] = deque()
        self._num_taken = 0
        self._sequences: dict[tuple[str, int], tuple[GenerateRequest, Iterator[TokenOutput], int]] = {}
        self._sent: deque[EngineOutputs] = deque()
        hub.connect(name, self, SMALL_CREDIT)

    def send(self, message: GenerateRequest | Abort) -> None:
        self._inbox.append(message)

    def step(self) -> None:
        ended = []
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Abort):
                ended += [
                    self._sequences.pop(key)
                    for key in list(self._sequences)
                    if key[0] == message.request_id and message.choice in (None, key[1])
                ]
            else:
                self._num_taken += 1
                key = message.request_id, message.choice
                assert key not in self._sequences, "asked twice"
                outputs = outputs_of(message, lambda: 1 + self._roll(3))
                self._sequences[key] = message, outputs, len(message.resume_ids)
        results = [
            TokenOutput(
                request_id=one.request_id,
                choice=one.choice,
                attempt=one.attempt,
                position=position,
                finish=FinishReason.ABORT,
            )
            for one, _, position in ended
        ]
        results += [self._next(key) for key in list(self._sequences) if self._roll(4)]
        self._sent.append(EngineOutputs(tuple(results), IDLE_STATS, self._num_taken))

    def _next(self, key: tuple[str, int]) -> TokenOutput:
        message, outputs, position = self._sequences[key]
        output = next(outputs)
        following = position + len(output.token_ids) + len(output.prompt_logprobs)
        self._sequences[key] = message, outputs, following
        if output.finish is not None:
            del self._sequences[key]
        return msgspec.structs.replace(output, attempt=message.attempt, position=position)

    def deliver(self) -> None:
        if self._sent:
            self._hub.receive(self._name, self._sent.popleft())

    def lose_message(self) -> None:
        if self._sent:
            self._sent.popleft()


@dataclass
class ScriptedFleet:
    """Replicas to which anything may happen, in any order."""

    hub: Hub
    roll: Callable[[int], int]
    engines: dict[str, WorkingEngine] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)  # replicas whose links have lost messages
    drained: set[str] = field(default_factory=set)

    def connect(self, name: str) -> None:
        if name not in self.engines:
            self.engines[name] = WorkingEngine(self.hub, name, self._roll)

    def _roll(self, sides: int) -> int:
        return self.roll(sides)

    def lose(self, name: str) -> None:
        if self.engines.pop(name, None) is not None:
            self.hub.disconnect(name, NOBODYS_FAULT)

    def act(self, action: str, name: str) -> None:
        engine = self.engines.get(name)
        if action == "connect":
            self.connect(name)
        elif action == "lose":
            self.lose(name)
        elif engine is None:
            return
        elif action == "step":
            engine.step()
        elif action == "deliver":
            engine.deliver()
        elif action == "lose message":
            engine.lose_message()
            self.cut.add(name)
        elif action == "suspect":
            self.hub.suspect(name, frozenset())
        elif action == "drain":
            self.hub.drain(name)
            self.drained.add(name)
        elif action == "drain some":
            self.hub.drain_some(name, 8e-3)
            self.drained.add(name)
        elif action == "end drain":
            self.hub.end_drain(name)
        else:
            self.hub.restore(name)

    def finish(self) -> None:
        self.roll = lambda sides: 1 % sides
        for name in self.cut | self.drained:  # the supervisor replaces the link or the engine
            self.lose(name)
        for name in NAMES:
            self.connect(name)
            self.hub.restore(name)
        for _ in range(2000):
            if not len(self.hub):
                return
            for engine in self.engines.values():
                engine.step()
                engine.deliver()
        raise AssertionError("requests never ended")


NAMES = ("r0", "r1", "r2")
ACTIONS = st.sampled_from(
    [
        *["step"] * 6,
        *["deliver"] * 6,
        "lose",
        "connect",
        "connect",
        "suspect",
        "restore",
        "drain",
        "drain some",
        "drain some",
        "end drain",
        "lose message",
    ]
)


def results_of(inboxes: list[Inbox]) -> list[RequestOutput | None]:
    return [inbox.result for inbox in inboxes]


def submit_kinds(hub: Hub, tokenizer: Tokenizer) -> list[Inbox]:
    inboxes = [Inbox() for _ in range(2 * len(KINDS))]
    for number, inbox in enumerate(inboxes):
        hub.submit(request(tokenizer, f"q{number}", inbox, **KINDS[number % len(KINDS)]))
    return inboxes


@pytest.mark.usefixtures("untraced")
@settings(max_examples=150, deadline=None)
@given(
    events=st.lists(st.tuples(ACTIONS, st.sampled_from(NAMES)), min_size=60, max_size=200),
    dice=st.lists(st.integers(0, 1 << 16), min_size=100, max_size=100),
)
def test_moves_do_not_change_results(
    tokenizer: Tokenizer, events: list[tuple[str, str]], dice: list[int]
) -> None:
    rolls = iter(dice * 10_000)
    plain = ScriptedFleet(Hub(Router.with_prefixes()), lambda sides: 1 % sides)
    expected = submit_kinds(plain.hub, tokenizer)
    plain.finish()
    fleet = ScriptedFleet(Hub(Router.with_prefixes()), lambda sides: next(rolls) % sides)
    for name in NAMES:
        fleet.connect(name)
    received = submit_kinds(fleet.hub, tokenizer)
    for action, name in events:
        fleet.act(action, name)
    fleet.finish()
    assert results_of(received) == results_of(expected)


# -- where requests go ------------------------------------------------------------------------------------


def test_requests_are_divided_between_replicas(tokenizer: Tokenizer) -> None:
    hub = Hub()
    channels = connected(hub, "r0", "r1", "r2", "r3")
    for number in range(32):
        hub.submit(request(tokenizer, f"q{number}", n=1 + number % 2))
    sent = [channel.take() for channel in channels.values()]
    assert {len(messages) for messages in sent} <= {11, 12, 13}
    homes: dict[str, set[int]] = {}
    for number, messages in enumerate(sent):
        for message in messages:
            homes.setdefault(message.request_id, set()).add(number)
    assert all(len(home) == 1 for home in homes.values()), "all choices of a request are in one place"


def test_outputs_of_a_replica_that_lost_a_request_are_ignored(tokenizer: Tokenizer) -> None:
    hub, inbox = Hub(), Inbox()
    channels = connected(hub, "r0", "r1")
    hub.submit(request(tokenizer, "q", inbox))
    (first,) = [name for name, channel in channels.items() if channel.sent]
    (second,) = set(channels) - {first}
    channels[first].take()
    hub.receive(first, channels[first].step(token("q")))
    hub.suspect(first, frozenset())
    assert channels[first].take() == [Abort("q")]
    (moved,) = channels[second].take()
    assert isinstance(moved, GenerateRequest)
    assert (moved.attempt, moved.resume_ids) == (1, (LETTER,))
    hub.receive(first, channels[first].step(token("q", token_id=70)))  # it was only slow
    hub.receive(second, channels[second].step(token("q", FinishReason.LENGTH)))
    assert inbox.result is not None
    assert inbox.result.token_ids == (LETTER, LETTER)


def test_a_suspected_replica_keeps_its_requests_if_there_is_no_other(tokenizer: Tokenizer) -> None:
    hub, inbox = Hub(), Inbox()
    channel = connected(hub, "r0")["r0"]
    hub.submit(request(tokenizer, "q", inbox))
    channel.take()
    hub.suspect("r0", frozenset())
    hub.submit(request(tokenizer, "new"))
    assert channel.take() == []
    hub.restore("r0")
    assert asked(channel) == ["new"]
    hub.receive("r0", channel.step(token("q", FinishReason.LENGTH)))
    assert inbox.result is not None


def test_requests_end_when_the_last_replica_is_dismissed(tokenizer: Tokenizer) -> None:
    hub, inbox = Hub(), Inbox()
    channels = connected(hub, "r0", "r1")
    hub.submit(request(tokenizer, "q", inbox))
    hub.dismiss("r0", "failed")
    assert hub.request_ids("r1") == ["q"]
    assert (inbox.updates, len(asked(channels["r1"]))) == ([], 1)
    hub.dismiss("r1", "failed")
    assert inbox.result is not None
    assert inbox.result.choices[0].error == "failed"


# -- requests that harm engines ------------------------------------------------------------------------------


class Harmful:
    """Replicas that one request kills or hangs; their engines are replaced at once."""

    def __init__(self, hub: Hub, bad: str, num_replicas: int, *, at: int = 0) -> None:
        """`bad` does harm when it has `at` tokens."""
        self.hub = hub
        self.bad = bad
        self._at = at
        self.harmed: list[str] = []
        self.channels = connected(hub, *(f"r{number}" for number in range(num_replicas)))
        self._running: dict[str, dict[str, int]] = {name: {} for name in self.channels}

    def run(self, harm: Callable[[str], None]) -> None:
        """Run steps on all replicas until all requests have ended."""
        for _ in range(200):
            for name in self.channels:
                self._step(name, harm)
            if not len(self.hub):
                return
        raise AssertionError("requests never ended")

    def _step(self, name: str, harm: Callable[[str], None]) -> None:
        channel, running = self.channels[name], self._running[name]
        for message in channel.take():
            if isinstance(message, GenerateRequest):
                running[message.request_id] = 9 - len(message.resume_ids)
            else:
                running.pop(message.request_id, None)
        if running.get(self.bad) == 9 - self._at:
            self.harmed.append(name)
            harm(name)
            return
        for request_id in list(running):
            running[request_id] -= 1
            is_last = running[request_id] == 0
            if is_last:
                del running[request_id]
            output = token(request_id, FinishReason.LENGTH if is_last else None)
            self.hub.receive(name, channel.step(output))

    def replace(self, name: str, loss: Loss) -> None:
        self._running[name] = {}
        self.hub.disconnect(name, loss)
        self.channels[name] = ScriptedChannel()
        self.hub.connect(name, self.channels[name])

    def in_slots(self, name: str) -> frozenset[int]:
        return frozenset(map(request_number, self._running[name]))


def submit_with_bad(hub: Hub, tokenizer: Tokenizer) -> dict[str, Inbox]:
    inboxes = {name: Inbox() for name in ("q0", "q1", "bad", "q2", "q3", "q4", "q5")}
    for name, inbox in inboxes.items():
        hub.submit(request(tokenizer, name, inbox))
    return inboxes


def errors_of(inboxes: dict[str, Inbox]) -> dict[str, str | None]:
    results = {name: inbox.result for name, inbox in inboxes.items()}
    return {name: result.choices[0].error for name, result in results.items() if result is not None}


def test_a_request_that_kills_engines_does_not_kill_the_fleet(tokenizer: Tokenizer) -> None:
    """The second death makes it a suspect. Then it is sent alone, to an engine that has no other requests."""
    hub = Hub()
    fleet = Harmful(hub, "bad", 4)
    inboxes = submit_with_bad(hub, tokenizer)
    fleet.run(lambda name: fleet.replace(name, Loss(fleet.in_slots(name))))
    assert errors_of(inboxes) == dict.fromkeys(inboxes) | {"bad": ENGINE_LOST.message}
    assert len(fleet.harmed) == MAX_REPLAYS + 1
    assert len(set(fleet.harmed[1:])) == 1, "the replica in quarantine is the one that it killed last"


@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_request_that_hangs_engines_does_not_hang_the_fleet(tokenizer: Tokenizer, at: int) -> None:
    hub = Hub()
    fleet = Harmful(hub, "bad", 4, at=at)
    inboxes = submit_with_bad(hub, tokenizer)

    def hang(name: str) -> None:
        hub.suspect(name, fleet.in_slots(name))
        fleet.replace(name, Loss(fleet.in_slots(name), is_hang=True))

    fleet.run(hang)
    assert errors_of(inboxes) == dict.fromkeys(inboxes) | {"bad": ENGINE_HUNG.message}
    assert len(fleet.harmed) == 3


def test_suspects_do_not_wait_for_a_replica_that_never_comes(tokenizer: Tokenizer) -> None:
    """If no engine is about to be started, one that computes other requests is used."""
    hub, suspect = Hub(), request(tokenizer, "suspect")
    connected(hub, "r0", "r1", "r2")
    hub.submit(suspect)
    for _ in range(2):
        home = suspect.replica
        assert home is not None
        hub.disconnect(home, Loss())
        hub.dismiss(home, "failed")
    assert suspect.is_suspect
    assert suspect.replica is not None, "it was sent to the last replica"


def test_a_suspect_of_the_last_other_replica_is_isolated_too(tokenizer: Tokenizer) -> None:
    hub = Hub()
    channels = connected(hub, "r0", "r1")
    requests = {name: request(tokenizer, name) for name in ("a", "b")}
    for one in requests.values():
        hub.submit(one)
    for name in ("r0", "r1"):  # both requests lose an engine, without output
        hub.disconnect(name, Loss())
    hub.connect("r1", channels["r1"])
    hub.disconnect("r1", Loss())
    assert all(one.is_suspect for one in requests.values())
    hub.connect("r1", channels["r1"])
    channels["r1"].take()
    isolated = hub.request_ids("r1")
    assert len(isolated) == 1
    hub.connect("r0", channels["r0"])
    late = request(tokenizer, "late")
    late.suspicion = 1
    hub.submit(late)
    assert late.replica == "r0"
    hub.suspect("r0", None)  # now it is a suspect, and only r1 is usable
    hub.submit(request(tokenizer, "new"))
    other = next(name for name in requests if name not in isolated)
    for done, following in ((isolated[0], [other]), (other, ["late"]), ("late", ["new"])):
        assert asked(channels["r1"]) == []
        hub.receive("r1", channels["r1"].step(token(done)))
        assert asked(channels["r1"]) == following


def test_outputs_for_a_request_in_quarantine_are_ignored(tokenizer: Tokenizer) -> None:
    """A replica that does not respond may confirm an abort when the suspect is nowhere."""
    hub, inbox = Hub(), Inbox()
    suspect = request(tokenizer, "q", inbox)
    channels = connected(hub, "r0", "r1")
    hub.submit(suspect)
    for _ in range(2):
        assert suspect.replica is not None
        home = suspect.replica
        hub.suspect(home, None)
    hub.restore(next(name for name in channels if name != home))
    assert suspect.is_suspect
    assert suspect.replica is None
    hub.receive(home, channels[home].step(ended("q", FinishReason.ABORT)))
    assert inbox.result is None
