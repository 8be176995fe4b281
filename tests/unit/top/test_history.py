import pytest

from octavo.top.connection import Away
from octavo.top.history import History
from unit.top.seen import FACTS, a_history, a_view


def test_rates_are_those_of_the_last_seconds() -> None:
    history = a_history(10)
    assert history.rates == (100.0, 100.0)
    assert history.samples[-1].tokens_per_second == 100
    assert history.uptime_seconds == 5 + 9


def test_a_new_engine_counts_from_zero_and_charts_go_on() -> None:
    history = a_history(10)
    for news in (Away("gone"), FACTS, a_view(0)):
        history.note(news)
    assert history.rates == (0.0, 0.0)
    assert history.samples[-1].tokens_per_second == 0
    assert len(history.samples) == 11
    assert len(history.finished) == 11
    assert len(history.steps) == 10, "those of the new engine"
    history.note(a_view(1))
    assert history.rates == (100.0, 100.0)


def test_before_anything_has_come() -> None:
    history = History()
    assert (history.rates, history.uptime_seconds) == ((0, 0), 0)
    history.note(Away("nobody is there"))
    assert history.state == "nobody is there"
    history.note(a_view(3))
    assert history.uptime_seconds == pytest.approx(0)
