"""The user chooses the replica whose engine is shown; the session connects again for it."""

import pytest

from octavo.top.connection import (
    PermanentFailure,
    ReplicaNotFound,
    Unavailable,
    Update,
    ViewAddress,
    ViewConnection,
)
from octavo.top.session import Session
from octavo.view import AwayEvent
from unit.top.seen import FACTS, a_fleet, a_replica, a_view


class Recorded(ViewConnection):
    """A connection without a server, which records what happens to all connections of a session."""

    log: list[str]

    def showing(self, replica: str | None) -> "Recorded":
        made = Recorded(self.address, None, 0.25, replica)
        made.log = self.log
        return made

    def start(self) -> None:
        self.log.append(f"start {self.replica}")

    def stop(self) -> None:
        self.log.append(f"stop {self.replica}")


@pytest.fixture
def session() -> Session:
    return a_session(None)


def a_session(replica: str | None) -> Session:
    connection = Recorded(ViewAddress.of("http://127.0.0.1:1"), None, 0.25, replica)
    connection.log = []
    session = Session(connection)
    session.start()
    return session


def log(session: Session) -> list[str]:
    assert isinstance(session.connection, Recorded)
    return session.connection.log


def receive(session: Session, *updates: Update) -> None:
    for update in updates:
        session.connection.updates.put(update)
    session.take_updates()


def three(number: int = 0) -> Update:
    return a_fleet(number, *[a_replica(number, name) for name in ("r10", "r0", "r2")])


def test_neighbours_are_chosen_in_natural_order(session: Session) -> None:
    receive(session, three(), FACTS, a_view(0))
    for distance in (1, 1, 1, -1):
        session.choose_neighbour(distance)
    assert log(session) == [
        "start None",
        *("stop None", "start r2"),
        *("stop r2", "start r10"),
        *("stop r10", "start r0"),
        *("stop r0", "start r10"),
    ]
    session.choose(None)
    session.choose(None)
    assert log(session)[-2:] == ["stop r10", "start None"], "choosing the same replica does not reconnect"


def test_replicas_stay_visible_while_connecting(session: Session) -> None:
    receive(session, three(), FACTS, a_view(0))
    before = session.connection
    session.choose_neighbour(1)
    before.updates.put(a_view(1))
    session.take_updates()
    assert (session.history.view, session.history.state) == (None, "connecting"), "the old view is not shown"
    assert session.history.fleet.names == ["r0", "r2", "r10"]


def test_there_is_nothing_to_choose_of_one_replica_or_none(session: Session) -> None:
    session.choose_neighbour(1)
    receive(session, a_fleet(0, a_replica(0)), FACTS)
    session.choose_neighbour(-1)
    assert log(session) == ["start None"]


def test_a_replica_without_facts_has_neighbours(session: Session) -> None:
    receive(session, three(), AwayEvent(state="starting"))
    session.choose_neighbour(-1)
    assert session.history.chosen == "r10"


def test_a_removed_replica_returns_to_the_automatic_choice(session: Session) -> None:
    receive(session, three(), FACTS)
    session.choose("r2")
    receive(session, three(1), AwayEvent(state="removed"))
    assert log(session)[-2:] == ["stop r2", "start None"]
    assert session.history.chosen is None
    assert session.history.notice == "r2 was removed: the server chooses the replica"
    session.choose_neighbour(1)
    assert session.history.notice == ""


def test_a_replica_that_is_missing_after_a_restart_was_removed() -> None:
    session = a_session("r2")
    receive(session, three(), Unavailable("restarting"), ReplicaNotFound("no r2"))
    assert (session.history.chosen, log(session)[-1]) == (None, "start None")


@pytest.mark.parametrize("failure", [ReplicaNotFound("no r2"), PermanentFailure("no key")])
def test_a_failure_at_the_start_is_raised(failure: PermanentFailure) -> None:
    session = a_session("r2")
    with pytest.raises(PermanentFailure, match="no "):
        receive(session, failure)
