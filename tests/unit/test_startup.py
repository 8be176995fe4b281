"""Startup of the processes of a server."""

import gc
import subprocess
import sys

import pytest

from octavo.startup import collector_paused


def test_garbage_collection_is_paused_and_new_objects_are_frozen() -> None:
    gc.unfreeze()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_garbage_collection_resumes_after_an_error() -> None:
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
def test_the_preloaded_library_is_the_one_torch_uses() -> None:
    subprocess.run([sys.executable, "-c", LOAD_AHEAD], check=True)


def test_preloading_without_torch_does_nothing() -> None:
    hidden = "import sys; sys.modules['torch'] = None; import octavo.startup as s; s._load_torch_library()"
    subprocess.run([sys.executable, "-c", hidden], check=True)
