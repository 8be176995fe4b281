import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import RequestError
from octavo.text.stop_strings import StopStringFilter

# A small alphabet, so that stop strings overlap, nest and almost match.
stop_sets = st.lists(st.text("abé", min_size=1, max_size=4), max_size=4).map(tuple)
pieces_of_text = st.lists(st.text("abé", max_size=6), max_size=8)


def naive(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Return where the text first ends with a stop string, and the longest stop string that ends there."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


@given(stops=stop_sets, pieces=pieces_of_text, include_stop=st.booleans())
def test_the_result_does_not_depend_on_how_text_is_split(
    stops: tuple[str, ...], pieces: list[str], include_stop: bool
) -> None:
    text = "".join(pieces)
    found = naive(text, stops)
    end, stop = found if found else (len(text), None)
    expected = text[: end - len(stop)] if stop and not include_stop else text[:end]

    stop_filter = StopStringFilter(stops, include_stop=include_stop)
    shown = "".join(stop_filter.push(piece) for piece in pieces) + stop_filter.finish()
    assert (shown, stop_filter.matched) == (expected, stop)


@given(stops=stop_sets, pieces=pieces_of_text)
def test_only_a_prefix_of_a_stop_string_is_held_back(stops: tuple[str, ...], pieces: list[str]) -> None:
    stop_filter = StopStringFilter(stops, include_stop=False)
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += stop_filter.push(piece)
        if stop_filter.matched is not None:
            break
        beginnings = {stop[:n] for stop in stops for n in range(len(stop))}
        longest = max((len(b) for b in beginnings if text.endswith(b)), default=0)
        assert shown == text[: len(text) - longest]


def test_nothing_follows_a_match() -> None:
    stop_filter = StopStringFilter(("STOP",), include_stop=True)
    assert stop_filter.push("a ST") == "a "
    assert stop_filter.push("OP b") == "STOP"
    assert (stop_filter.push("c"), stop_filter.finish()) == ("", "")


def test_an_empty_stop_string_is_rejected() -> None:
    with pytest.raises(RequestError, match="empty"):
        StopStringFilter(("a", ""), include_stop=False)
