"""Requests leave a replica that is drained, some at a time."""

from octavo.fleet.cost import SECONDS_PER_PROMPT_TOKEN
from octavo.frontend.hub import Hub
from octavo.frontend.loss import NOBODYS_FAULT, Loss
from octavo.protocol import FinishReason
from octavo.text.tokenizer import Tokenizer
from unit.frontend.scripted_hub import PROMPT, asked, connected, request, token


def test_a_drained_replica_gives_its_requests_away_and_gets_no_others(tokenizer: Tokenizer) -> None:
    hub = Hub()
    channels = connected(hub, "r0", "r1")
    for number in range(8):
        hub.submit(request(tokenizer, f"q{number}"))
    channels["r1"].take()
    moved = asked(channels["r0"])
    hub.drain("r0")
    hub.submit(request(tokenizer, "new"))
    assert sorted(asked(channels["r1"])) == sorted([*moved, "new"])
    assert (len(hub.request_ids("r0")), len(hub.request_ids("r1"))) == (0, 9)
    hub.suspect("r0", frozenset())
    hub.restore("r0")
    assert not hub.is_usable("r0"), "it is still draining"
    hub.disconnect("r0", NOBODYS_FAULT)
    hub.connect("r0", channels["r0"])
    hub.submit(request(tokenizer, "newer"))
    assert asked(channels["r0"]) == ["newer"]


def test_a_drained_replica_gives_away_some_requests_at_a_time(tokenizer: Tokenizer) -> None:
    """When those that have moved continue, the next ones move; the others go on where they are."""
    hub = Hub()
    channels = connected(hub, "r0", "r1")
    for number in range(12):
        hub.submit(request(tokenizer, f"q{number}"))
    moving = hub.request_ids("r0")
    for channel in channels.values():
        channel.take()
    hub.receive("r0", channels["r0"].step(token(moving[0])))  # it is longer now than the others
    for_three = 3.5 * len(PROMPT) * SECONDS_PER_PROMPT_TOKEN

    def drain(seconds: float) -> list[str]:
        hub.drain_some("r0", seconds)
        return asked(channels["r1"])

    assert drain(for_three) == moving[1:4]
    assert drain(for_three) == [], "they are still being recomputed"
    assert hub.request_ids("r0") == [moving[0], *moving[4:]]
    hub.submit(request(tokenizer, "new"))
    assert asked(channels["r1"]) == ["new"]
    hub.receive("r1", channels["r1"].step(token(moving[1])))
    assert drain(for_three) == [moving[4]]
    hub.receive("r1", channels["r1"].step(*(token(name) for name in moving[2:4])))
    assert drain(0.0) == [moving[5]], "two at any length"
    hub.receive("r1", channels["r1"].step(token(moving[4])))
    hub.suspect("r1", frozenset())
    assert drain(for_three) == [], "there is no other usable replica"
    assert hub.request_ids("r0") == [moving[0]]
    hub.end_drain("r0")
    assert hub.is_usable("r0")


def test_a_drained_replica_gives_nothing_away_to_one_in_quarantine(tokenizer: Tokenizer) -> None:
    """There its requests would wait for the suspect; their engine is healthy."""
    hub, suspect = Hub(), request(tokenizer, "suspect")
    channels = connected(hub, "r0", "r1")
    hub.submit(suspect)
    for _ in range(2):
        home = suspect.replica
        assert home is not None
        hub.disconnect(home, Loss())
        hub.connect(home, channels[home])
    assert suspect.is_suspect
    assert suspect.replica is not None
    other = "r1" if suspect.replica == "r0" else "r0"
    for number in range(6):
        hub.submit(request(tokenizer, f"q{number}"))
    there = hub.request_ids(other)
    assert len(there) == 6
    for _ in range(5):
        hub.drain_some(other, 1.0)
    assert hub.request_ids(other) == there
    hub.receive(suspect.replica, channels[suspect.replica].step(token("suspect", FinishReason.LENGTH)))
    hub.drain_some(other, 1.0)
    assert hub.request_ids(other) == []


def test_what_an_earlier_drain_moved_does_not_count(tokenizer: Tokenizer) -> None:
    hub = Hub()
    channels = connected(hub, "r0", "r1")
    for number in range(8):
        hub.submit(request(tokenizer, f"q{number}"))
    hub.drain_some("r0", 1.0)
    assert hub.request_ids("r0") == []
    hub.disconnect("r0", NOBODYS_FAULT)
    hub.connect("r0", channels["r0"])
    hub.disconnect("r1", NOBODYS_FAULT)
    assert len(hub.request_ids("r0")) == 8
    hub.connect("r1", channels["r1"])
    hub.drain_some("r0", 1.0)
    assert hub.request_ids("r0") == []
