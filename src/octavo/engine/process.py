"""The engine as a process of its own: `python -m octavo.engine.process FOLDER PARENT`.

Importing this module is fast. Torch is imported later, when the parent already watches the process.
"""

import sys

from octavo.engine.core import EngineCore
from octavo.engine.loop import Around, run_engine
from octavo.link.folder import EngineSettings
from octavo.link.heartbeat import DOWNLOADING_TIMEOUT, HeartbeatFile, Phase
from octavo.protocol import EngineFacts
from octavo.startup import preload_torch


def start_engine(
    settings: EngineSettings, heartbeat: HeartbeatFile, around: Around
) -> tuple[EngineCore, EngineFacts]:
    preload_torch()
    from octavo.checkpoint import open_checkpoint
    from octavo.config import EngineOptions
    from octavo.engine.build import build_engine, open_draft_checkpoint

    heartbeat.write(Phase.OPENING, timeout=DOWNLOADING_TIMEOUT)
    options = EngineOptions(**settings.options)
    checkpoint = open_checkpoint(
        options.model,
        checkpoint_path=options.checkpoint_path,
        revision=options.revision,
        tokenizer=options.tokenizer,
        quantize=options.quantize,
    )
    draft_checkpoint = open_draft_checkpoint(options)
    heartbeat.write(Phase.LOADING)
    return build_engine(
        checkpoint,
        options,
        progress=None if settings.log_format == "human" else False,  # None: a bar on a terminal
        on_loaded=lambda done, total: heartbeat.write(Phase.LOADING, done, total),
        around_execute=around,
        num_engines=settings.num_engines,
        draft_checkpoint=draft_checkpoint,
    )


if __name__ == "__main__":
    sys.exit(run_engine(sys.argv[1:], start_engine))
