"""Which answers are compared, and which replica is blamed. tests/chaos/test_audit.py has real engines."""

from collections.abc import Iterator

import pytest

from octavo.frontend.audits import MAX_AUDITS, Audits
from octavo.frontend.hub import Hub
from octavo.frontend.loss import NOBODYS_FAULT
from octavo.protocol import Abort, FinishReason, GenerateRequest
from octavo.text.tokenizer import Tokenizer
from unit.frontend.scripted_hub import ScriptedChannel, byte_tokenizer, ended, request, token


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


class AuditedFleet:
    """Replicas whose answers the test chooses, in the order in which they are asked."""

    def __init__(self, tokenizer: Tokenizer, num_replicas: int, rate: float = 1.0) -> None:
        self.hub = Hub(audits=Audits(rate))
        self.tokenizer = tokenizer
        self.channels = {f"r{number}": ScriptedChannel() for number in range(num_replicas)}
        for name, channel in self.channels.items():
            self.hub.connect(name, channel)

    def asked(self) -> Iterator[tuple[str, GenerateRequest]]:
        """Yield what is asked next and where, until nothing is."""
        while True:
            found = [(name, one) for name, channel in self.channels.items() for one in channel.take()]
            new = [(name, one) for name, one in found if isinstance(one, GenerateRequest)]
            if not new:
                return
            yield from new

    def answer(self, replica: str, message: GenerateRequest, letter: int) -> None:
        output = token(message.request_id, FinishReason.LENGTH, token_id=letter)
        self.hub.receive(replica, self.channels[replica].step(output))

    def play(self, name: str, *letters: int) -> list[str]:
        """Submit a request, and give one answer after the other. Return the replicas that were asked."""
        self.hub.submit(request(self.tokenizer, name, max_tokens=1))
        replicas: list[str] = []
        for replica, message in self.asked():
            self.answer(replica, message, letters[len(replicas)])
            replicas.append(replica)
        assert len(self.hub) == 0
        return replicas


def test_equal_answers_are_counted(tokenizer: Tokenizer) -> None:
    fleet = AuditedFleet(tokenizer, 3)
    first, second = fleet.play("q", 1, 1)
    assert first != second
    assert (fleet.hub.audit_counts.num_compared, fleet.hub.audit_counts.num_wrong) == (1, {})


@pytest.mark.parametrize(
    ("letters", "wrong"), [((1, 2, 1), {1}), ((2, 1, 1), {0}), ((1, 2, 2), {0}), ((1, 2, 3), {0, 1, 2})]
)
def test_a_third_answer_decides(tokenizer: Tokenizer, letters: tuple[int, ...], wrong: set[int]) -> None:
    fleet = AuditedFleet(tokenizer, 3)
    replicas = fleet.play("q", *letters)
    assert sorted(replicas) == ["r0", "r1", "r2"]
    assert fleet.hub.audit_counts.num_wrong == {replicas[place]: 1 for place in wrong}
    assert fleet.hub.audit_counts.num_compared == 1


def test_two_replicas_that_differ_are_both_named(tokenizer: Tokenizer) -> None:
    fleet = AuditedFleet(tokenizer, 2)
    assert sorted(fleet.play("q", 1, 2)) == ["r0", "r1"]
    assert fleet.hub.audit_counts.num_wrong == {"r0": 1, "r1": 1}


def test_a_single_replica_is_not_audited(tokenizer: Tokenizer) -> None:
    fleet = AuditedFleet(tokenizer, 1)
    assert fleet.play("q", 1) == ["r0"]
    assert fleet.hub.audit_counts.num_left_out == 1


def test_the_rate_is_that_of_requests(tokenizer: Tokenizer) -> None:
    fleet = AuditedFleet(tokenizer, 2, 0.1)
    for number in range(1000):
        fleet.play(f"q{number}", 1, 1)
    assert 60 < fleet.hub.audit_counts.num_compared < 140


def test_answers_of_several_replicas_or_without_an_end_are_not_compared(tokenizer: Tokenizer) -> None:
    fleet = AuditedFleet(tokenizer, 2)
    fleet.hub.submit(request(tokenizer, "q", max_tokens=1))
    ((replica, _),) = [(name, one) for name, channel in fleet.channels.items() for one in channel.take()]
    fleet.hub.disconnect(replica, NOBODYS_FAULT)
    ((other, moved),) = fleet.asked()
    assert other != replica
    fleet.hub.connect(replica, fleet.channels[replica])
    fleet.answer(other, moved, 1)
    fleet.hub.submit(request(tokenizer, "aborted", max_tokens=1))
    fleet.hub.abort("aborted")
    for name, channel in fleet.channels.items():
        for message in channel.take():
            assert message.request_id == "aborted"
            if isinstance(message, Abort):
                fleet.hub.receive(name, channel.step(ended("aborted", FinishReason.ABORT)))
    assert len(fleet.hub) == 0
    assert fleet.hub.audit_counts.num_compared == 0


def test_there_are_few_audits_at_a_time_and_lost_ones_make_room(tokenizer: Tokenizer) -> None:
    """Audits are behind the requests of clients, and no tenant is charged for them."""
    fleet = AuditedFleet(tokenizer, 2)

    def begin(count: int) -> list[tuple[str, GenerateRequest]]:
        for number in range(count):
            fleet.hub.submit(request(tokenizer, f"q{number}", max_tokens=1))
        clients = [(name, one) for name, channel in fleet.channels.items() for one in channel.take()]
        for name, message in clients:
            assert isinstance(message, GenerateRequest)
            fleet.answer(name, message, 1)
        return [
            (name, one)
            for name, channel in fleet.channels.items()
            for one in channel.take()
            if isinstance(one, GenerateRequest)
        ]

    audits = begin(3 * MAX_AUDITS)
    assert len(audits) == len(fleet.hub) == MAX_AUDITS
    assert all(message.rank > 0 and message.tenant == "(audit)" for _, message in audits)
    for name, message in audits:
        failed = ended(message.request_id, FinishReason.ERROR)
        fleet.hub.receive(name, fleet.channels[name].step(failed))
    assert len(fleet.hub) == 0
    assert len(begin(1)) == 1
    assert fleet.hub.audit_counts.num_left_out == 2 * MAX_AUDITS
