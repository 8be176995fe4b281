"""docs/security.md states the actual connection limit and names existing tests."""

import ast
import re

import pytest

from docs.pages import ROOT, code_words, text_of
from octavo.dialect.syntax_tree import syntax_tree
from octavo.server.http.listener import OTHER_FILES

PAGE = "docs/security.md"
BOUND = re.compile(r"the system allows open files, less (\d+) for the server itself")
HEADER = "| asset | attacker | guard | test |"

NAMED = sorted({word for word in code_words(PAGE) if word.startswith("tests/")})


@pytest.mark.parametrize("page", [PAGE, "docs/reliability.md"])
def test_pages_state_the_connection_limit(page: str) -> None:
    text = " ".join(text_of(page).split())
    assert BOUND.findall(text) == [str(OTHER_FILES)]
    assert "connections are not counted" not in text


def test_every_guard_has_a_test() -> None:
    rows = text_of(PAGE).partition(HEADER)[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) > 10
    for row in rows:
        _, _, attacker, guard, tests, _ = row.split("|")
        assert attacker.strip()
        assert guard.strip()
        assert re.fullmatch(r"`tests/[\w/]+\.py(::\w+)?`(<br>`tests/[\w/]+\.py(::\w+)?`)*", tests.strip()), (
            row
        )


@pytest.mark.parametrize("test", NAMED)
def test_every_named_test_exists(test: str) -> None:
    """Detects pages that still use the old name of a renamed test."""
    path, _, name = test.partition("::")
    functions = {
        node.name
        for node in ast.walk(syntax_tree((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {one for one in functions if one.startswith("test_")}
    assert not name or name in functions
