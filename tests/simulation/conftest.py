"""Fixtures of the simulation."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def untraced() -> Iterator[None]:
    """Without coverage, which makes a simulation three times slower. (`no_cover` has no effect in xdist.)"""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)
