"""Engines that load the model only when a test lets them, however long the test itself is paused."""

from pathlib import Path

# Run by every Python process at its start. An engine waits before it imports what loads the model.
HOLD = """
import os, sys, time

class Hold:
    def find_spec(self, name, path=None, target=None):
        while name == "octavo.engine.build" and not os.path.exists(os.environ["MAY_LOAD"]):
            time.sleep(0.01)
        return None

sys.meta_path.insert(0, Hold())
"""


class HeldLoading:
    """`environ` is for the server."""

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(HOLD)
        self._may_load = folder / "may-load"
        self.environ = {"PYTHONPATH": str(folder), "MAY_LOAD": str(self._may_load)}

    def go_on(self) -> None:
        self._may_load.touch()
