"""New requests: when they are sent, and in which order."""

import msgspec
import pytest

from data.engine_facts import FACTS, IDLE_STATS
from octavo.fairness.tenant import Tenant
from octavo.frontend.hub import Hub
from octavo.frontend.loss import NOBODYS_FAULT, Loss
from octavo.frontend.replica_link import MAX_URGENT
from octavo.protocol import Abort, EngineOutputs, FinishReason, GenerateRequest
from octavo.text.tokenizer import Tokenizer
from unit.frontend.scripted_hub import PROMPT, Inbox, ScriptedChannel, byte_tokenizer, ended, request, token

ONE_PROMPT = msgspec.structs.replace(FACTS, prompt_credit=len(PROMPT))
ALICE, BOB = Tenant("alice"), Tenant("bob")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


class Replicas:
    """A hub, and replicas that are sent one prompt ahead of time."""

    def __init__(self, tokenizer: Tokenizer, *names: str) -> None:
        self.tokenizer = tokenizer
        self.hub = Hub()
        self.channels = {name: ScriptedChannel() for name in names}
        for name in names:
            self.connect(name)

    def connect(self, name: str) -> None:
        self.hub.connect(name, self.channels[name], ONE_PROMPT)

    def submit(self, name: str, tenant: Tenant = ALICE, *, rank: int = 0, priority: int = 0) -> Inbox:
        inbox = Inbox()
        self.hub.submit(
            request(self.tokenizer, name, inbox, tenant=tenant, rank=rank, priority=priority, max_tokens=1)
        )
        return inbox

    def sent(self) -> dict[str, str]:
        """Return the requests that were sent since the last call, and where."""
        return {
            message.request_id: name
            for name, channel in self.channels.items()
            for message in channel.take()
            if isinstance(message, GenerateRequest)
        }

    def finish(self, name: str, replica: str) -> None:
        self.hub.receive(replica, self.channels[replica].step(token(name, FinishReason.LENGTH)))


def test_one_request_of_each_tenant_is_sent_and_the_others_take_turns(tokenizer: Tokenizer) -> None:
    replicas = Replicas(tokenizer, "r0")
    for number in range(3):
        replicas.submit(f"alice{number}", ALICE)
    for number in range(3):
        replicas.submit(f"bob{number}", BOB)
    assert list(replicas.sent()) == ["alice0", "bob0"]
    order = []
    for name in ("alice0", "bob0", "alice1", "bob1"):
        replicas.finish(name, "r0")
        order += list(replicas.sent())
    assert sorted(order[:2]) == ["alice1", "bob1"]
    assert sorted(order) == ["alice1", "alice2", "bob1", "bob2"]


def test_what_waits_goes_to_the_replica_that_is_free(tokenizer: Tokenizer) -> None:
    replicas = Replicas(tokenizer, "r0", "r1")
    for number in range(6):
        replicas.submit(f"q{number}")
    first = replicas.sent()
    assert sorted(first.values()) == ["r0", "r1"]
    (of_r1,) = [name for name, replica in first.items() if replica == "r1"]
    done = [of_r1]
    while done:  # r0 does nothing, so r1 answers all the others
        replicas.finish(done.pop(), "r1")
        sent = replicas.sent()
        assert set(sent.values()) <= {"r1"}
        done += sent
    assert replicas.hub.num_unsent == 0
    assert len(replicas.hub) == 1


def test_a_lost_replica_leaves_nobody_waiting(tokenizer: Tokenizer) -> None:
    replicas = Replicas(tokenizer, "r0", "r1")
    inboxes = [replicas.submit(f"q{number}") for number in range(6)]
    replicas.hub.disconnect("r0", NOBODYS_FAULT)
    replicas.hub.disconnect("r1", NOBODYS_FAULT)
    replicas.sent()
    replicas.submit("late")
    assert replicas.sent() == {}
    replicas.connect("r1")
    pending = replicas.sent()
    while pending:
        name, replica = pending.popitem()
        replicas.finish(name, replica)
        pending |= replicas.sent()
    assert len(replicas.hub) == 0
    assert all(inbox.result is not None for inbox in inboxes)


def test_priorities_do_not_bypass_the_credit(tokenizer: Tokenizer) -> None:
    replicas = Replicas(tokenizer, "r0")
    for number in range(50):
        replicas.submit(f"q{number}", priority=-number)
    assert len(replicas.sent()) == MAX_URGENT
    replicas.submit("bob", BOB)
    assert list(replicas.sent()) == ["bob"]


def test_nothing_is_kept_of_tenants_and_ranks_without_requests(tokenizer: Tokenizer) -> None:
    replicas = Replicas(tokenizer, "r0")
    replicas.submit("first")
    for number in range(300):
        replicas.submit(f"q{number}", rank=number + 1)
        replicas.submit(f"w{number}", rank=number + 1)
        replicas.hub.abort(f"w{number}")
        replicas.hub.abort(f"q{number}")
        replicas.hub.receive("r0", replicas.channels["r0"].step(ended(f"q{number}", FinishReason.ABORT)))
    assert len(replicas.hub) == 1
    assert replicas.hub._new._lines == {}
    assert list(replicas.hub._new._requests) == ["first"]


def test_the_work_for_one_output_does_not_grow_with_the_square_of_the_tenants(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = Replicas(tokenizer, "r0")
    for number in range(100):
        for place in ("a", "b"):
            replicas.submit(f"{place}{number}", Tenant(f"tenant {number}"))
    replicas.sent()
    num_choices = 0
    choose = replicas.hub._router.choose

    def counted(*arguments: object) -> object:
        nonlocal num_choices
        num_choices += 1
        return choose(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(replicas.hub._router, "choose", counted)
    replicas.finish("a7", "r0")
    assert list(replicas.sent()) == ["b7"]
    assert num_choices == 1


def test_a_new_tenant_does_not_start_behind_those_with_another_rank(tokenizer: Tokenizer) -> None:
    """A tenant of rank 0 gets everything for a long time. Of two tenants of rank 1, neither is behind."""
    replicas = Replicas(tokenizer, "r0")
    replicas.submit("old0", ALICE, rank=1)
    replicas.submit("old1", ALICE, rank=1)
    replicas.submit("urgent0", Tenant("urgent"))
    for number in range(100):
        replicas.submit(f"urgent{number + 1}", Tenant("urgent"))
        replicas.finish(f"urgent{number}", "r0")
    replicas.submit("new0", BOB, rank=1)
    replicas.submit("new1", BOB, rank=1)
    accounts = {one.account.name: one.account.used for one in replicas.hub._new._requests.values()}
    assert accounts["bob"] - accounts["alice"] < 100


def test_requests_that_joined_a_quarantine_are_sent_when_it_is_lost(tokenizer: Tokenizer) -> None:
    """A and X hung an engine. Of the next one, B was sent nothing before it died."""
    replicas = Replicas(tokenizer, "r0")
    replicas.submit("A"), replicas.submit("X", BOB)
    channel = replicas.channels["r0"]
    replicas.hub.receive("r0", channel.step(token("A"), token("X")))
    replicas.hub.disconnect("r0", Loss(is_hang=True))
    channel.take()
    replicas.connect("r0")
    replicas.submit("B", Tenant("carol"))
    (alone,) = replicas.sent()
    replicas.hub.receive("r0", channel.step(token(alone)))
    replicas.sent()
    replicas.hub.disconnect("r0", NOBODYS_FAULT)
    replicas.connect("r0")
    seen: set[str] = set()
    for _ in range(10):
        sent = replicas.sent()
        seen |= sent.keys()
        for name in sent:
            replicas.finish(name, "r0")
    assert "B" in seen
    assert len(replicas.hub) == 0


def test_an_abort_is_not_sent_for_a_request_that_waits(tokenizer: Tokenizer) -> None:
    replicas = Replicas(tokenizer, "r0")
    replicas.submit("first")
    inbox = replicas.submit("second")
    replicas.sent()
    replicas.hub.abort("second")
    assert not [one for one in replicas.channels["r0"].take() if isinstance(one, Abort)]
    assert inbox.result is not None
    assert inbox.result.choices[0].finish_reason == "abort"


def test_room_is_used_after_an_output_was_lost_and_a_request_aborted(tokenizer: Tokenizer) -> None:
    replicas = Replicas(tokenizer, "r0")
    replicas.submit("first")
    replicas.submit("second")
    assert list(replicas.sent()) == ["first"]
    missing = msgspec.structs.replace(token("first"), position=5)
    replicas.hub.receive("r0", EngineOutputs((missing,), IDLE_STATS))
    assert list(replicas.sent()) == ["first"], "it was sent again"
    replicas.hub.abort("first")
    replicas.hub.receive("r0", replicas.channels["r0"].step(ended("first", FinishReason.ABORT)))
    assert list(replicas.sent()) == ["second"]


def test_waiting_leaves_one_entry_for_each_request(tokenizer: Tokenizer) -> None:
    """However often a place is looked for."""
    replicas = Replicas(tokenizer, "r0", "r1")
    for number in range(20):
        replicas.submit(f"q{number}")
    replicas.hub.disconnect("r0", NOBODYS_FAULT)
    replicas.hub.disconnect("r1", NOBODYS_FAULT)
    for number in range(200):
        replicas.submit(f"late{number}")
        replicas.hub.suspect("r0", None)
    new = replicas.hub._new
    heaps = [line.heap for lines in new._lines.values() for line in lines.values()]
    assert sum(len(heap.entries) for heap in heaps) == len(new) == 218
