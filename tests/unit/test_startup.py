"""What the processes of a server do while they start."""

import gc

import pytest

from octavo.startup import collector_paused


def test_the_collector_pauses_and_never_looks_at_what_was_made() -> None:
    gc.unfreeze()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_the_collector_runs_again_after_an_error() -> None:
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()
    gc.unfreeze()
