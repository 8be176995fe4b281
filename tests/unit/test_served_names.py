"""The names under which a model is served."""

import re

import pytest

from octavo.errors import ConfigError
from octavo.server.served_names import MAX_NAME, ServedNames


@pytest.mark.parametrize(
    ("option", "first", "accepted", "refused"),
    [
        (None, "own", ["own"], ["", "other", "ow", "own "]),
        ("a", "a", ["a"], ["own", "A", "aa"]),
        ("a, b/c,a", "a", ["a", "b/c"], ["b", "c", "a, b/c"]),
        ("*", "own", ["own", "", "anything", "x" * MAX_NAME], ["a\nb", "x" * (MAX_NAME + 1)]),
        ("a,claude-*", "a", ["a", "claude-", "claude-x-1"], ["claude", "a claude-x", "xclaude-"]),
        ("gpt-*-mini,*:7b", "own", ["own", "gpt-4-mini", "q:7b"], ["gpt-mini", "gpt-4-mini2", "q:7bb"]),
        ("a.c*", "own", ["a.c1"], ["abc1"]),
    ],
)
def test_names_and_patterns(option: str | None, first: str, accepted: list[str], refused: list[str]) -> None:
    names = ServedNames.parse(option, "own")
    assert names.first == first
    published = names.allowed
    for name in (*accepted, *refused):
        assert names.has(name) == (name in accepted), name
        if "enum" in published:
            described = name in published["enum"]
        else:
            described = len(name) <= MAX_NAME and bool(re.search(str(published["pattern"]), name))
        assert described == (name in accepted), name


def test_long_names_match_in_linear_time() -> None:
    """A pattern with several stars takes polynomial time, so names that match one are short."""
    names = ServedNames.parse("*a*a*a*a*b", "own")
    assert not names.has("a" * 4_000_000)


@pytest.mark.parametrize("option", [",", "a,", "a,,b", " "])
def test_empty_names_are_rejected(option: str) -> None:
    with pytest.raises(ConfigError, match="empty name"):
        ServedNames.parse(option, "own")
