"""An engine with a flipped bit: `python -m corrupt_engine FOLDER PARENT`.

This is the real engine (with the options in the settings), except that a bit in the exponent of one weight is
inverted after it was read. Its fingerprint is that of the checkpoint.
"""

import sys
from typing import Any
from unittest import mock

from octavo.engine.core import EngineCore
from octavo.engine.loop import Around, run_engine
from octavo.engine.process import start_engine
from octavo.link.folder import EngineSettings
from octavo.link.heartbeat import HeartbeatFile
from octavo.protocol import EngineFacts

WEIGHT = "model.norm.weight"  # used for every token
BIT = 25  # of a float32: the third of its exponent


class FlippedBit:
    """A weight target that inverts a bit of its first value."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def write_rows(self, start: int, rows: Any) -> None:
        import torch

        rows = rows.float().clone()
        if start == 0:
            rows.view(-1).view(torch.int32)[0] ^= 1 << BIT
        self._target.write_rows(start, rows)


def start_corrupt(
    settings: EngineSettings, heartbeat: HeartbeatFile, around: Around
) -> tuple[EngineCore, EngineFacts]:
    from octavo.runner import loaded_model

    load_weights: Any = loaded_model.load_weights  # type: ignore[attr-defined]

    def load_corrupt(checkpoint: Any, targets: Any, **options: Any) -> Any:
        return load_weights(checkpoint, {**targets, WEIGHT: FlippedBit(targets[WEIGHT])}, **options)

    with mock.patch.object(loaded_model, "load_weights", load_corrupt):
        return start_engine(settings, heartbeat, around)


if __name__ == "__main__":
    sys.exit(run_engine(sys.argv[1:], start_corrupt))
