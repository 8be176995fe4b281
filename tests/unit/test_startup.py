"""What the processes of a server do while they start."""

import gc
import subprocess
import sys

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


LOAD_AHEAD = """
import sys
from pathlib import Path
from octavo.startup import _load_torch_library

def mapped():
    return {line.split()[-1] for line in open("/proc/self/maps") if "libtorch_cpu" in line}

_load_torch_library()
ahead = mapped()
assert ahead and "torch" not in sys.modules
import torch
assert mapped() == ahead
assert torch.ones(3).sum() == 3
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_library_that_is_loaded_ahead_is_the_one_that_torch_uses() -> None:
    subprocess.run([sys.executable, "-c", LOAD_AHEAD], check=True)


def test_without_torch_nothing_is_loaded_ahead_and_nothing_is_said() -> None:
    hidden = "import sys; sys.modules['torch'] = None; import octavo.startup as s; s._load_torch_library()"
    subprocess.run([sys.executable, "-c", hidden], check=True)
