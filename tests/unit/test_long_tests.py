from typing import cast

import pytest

from long_tests import LONG_SECONDS, LongTests


def test_a_test_is_named_while_it_runs_for_long() -> None:
    tests = LongTests(cast(pytest.TerminalReporter, None))
    tests.pytest_runtest_logstart("slow")
    tests.pytest_runtest_logstart("fast")
    tests.pytest_runtest_logfinish("fast")
    now = tests._began = tests._running["slow"]
    assert tests.lines(now + LONG_SECONDS / 2) == []
    (line,) = tests.lines(now + LONG_SECONDS + 1)
    assert line == "after 4 min: slow has run for 4 min"
