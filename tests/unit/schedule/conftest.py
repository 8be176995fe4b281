"""A scheduler to step by hand."""

import pytest

from unit.schedule.driver import Computed, Driver, Make, computed


@pytest.fixture
def make_driver() -> Make:
    return Driver


@pytest.fixture(name="computed")
def computed_fixture() -> Computed:
    return computed
