import msgspec
import pytest

from octavo.top.connection import Unavailable
from octavo.top.history import History
from octavo.view import AwayEvent
from unit.top.seen import FACTS, a_history, a_view


def test_rates_cover_the_last_seconds() -> None:
    history = a_history(10)
    assert history.rates == (100.0, 100.0)
    assert history.samples[-1].tokens_per_second == 100
    assert history.uptime_seconds == 5 + 9


def test_a_new_engine_resets_rates_but_not_charts() -> None:
    history = a_history(10)
    for news in (Unavailable("gone"), FACTS, a_view(0)):
        history.note(news)
    assert history.rates == (0.0, 0.0)
    assert history.samples[-1].tokens_per_second == 0
    assert len(history.samples) == 11
    assert len(history.finished) == 11
    assert len(history.steps) == 10, "only steps of the new engine"
    history.note(a_view(1))
    assert history.rates == (100.0, 100.0)


def test_charts_are_of_one_replica() -> None:
    history = a_history(10)
    history.note(msgspec.structs.replace(FACTS, replica="r1"))
    history.note(a_view(10))
    assert len(history.samples) == 1
    assert len(history.finished) == 11, "of all replicas"
    assert history.shown_replica == "r1"


@pytest.mark.parametrize(
    ("away", "words"),
    [
        (AwayEvent(state="loading", done=1, total=4), "the engine of r1 is loading 25 %"),
        (AwayEvent(state="failed"), "the engine of r1 has failed"),
        (AwayEvent(state="removed"), "the replica r1 was removed"),
    ],
)
def test_the_state_of_a_chosen_replica(away: AwayEvent, words: str) -> None:
    history = a_history()
    history.choose("r1")
    assert (history.state, history.view, len(history.samples)) == ("connecting", None, 0)
    history.note(away)
    assert (history.state, history.shown_replica) == (words, "r1")


def test_an_empty_history() -> None:
    history = History()
    assert (history.rates, history.uptime_seconds) == ((0, 0), 0)
    history.note(Unavailable("nobody is there"))
    assert history.state == "nobody is there"
    history.note(a_view(3))
    assert history.uptime_seconds == pytest.approx(0)
