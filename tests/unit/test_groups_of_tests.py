"""Tests that share a server or a file run in one process, or each process starts its own."""

import pytest


@pytest.mark.xdist_group("together")
def test_a_group_stays_together(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("nothing is distributed by groups")
    assert request.node.nodeid.endswith("@together")
