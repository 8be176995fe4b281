"""Tests that share a server or a file are in one xdist group and so run in one process."""

import pytest


@pytest.mark.xdist_group("together")
def test_xdist_groups_are_active(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("tests are not distributed by group")
    assert request.node.nodeid.endswith("@together")
