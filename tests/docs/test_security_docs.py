"""docs/security.md says of connections what the server does."""

import re

import pytest

from docs.pages import text_of
from octavo.server.http.listener import OTHER_FILES

BOUND = re.compile(r"the system allows open files, less (\d+) for the server itself")


@pytest.mark.parametrize("page", ["docs/security.md", "docs/reliability.md"])
def test_the_bound_of_connections_is_told(page: str) -> None:
    text = " ".join(text_of(page).split())
    assert BOUND.findall(text) == [str(OTHER_FILES)]
    assert "connections are not counted" not in text
