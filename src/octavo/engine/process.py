"""The engine as a process of its own: `python -m octavo.engine.process FOLDER PARENT`.

Importing this is quick. Torch comes in when the process is already under the eyes of its parent.
"""

import sys

from octavo.engine.core import EngineCore
from octavo.engine.loop import Around, run_engine
from octavo.link.folder import EngineSettings
from octavo.link.status_page import PATIENCE_DOWNLOADING, Phase, StatusPage
from octavo.protocol import EngineFacts
from octavo.startup import begin_with_torch


def start_engine(
    settings: EngineSettings, page: StatusPage, around: Around
) -> tuple[EngineCore, EngineFacts]:
    begin_with_torch()
    from octavo.checkpoint import open_checkpoint
    from octavo.config import EngineOptions
    from octavo.engine.build import build_engine

    page.stamp(Phase.OPENING, patience=PATIENCE_DOWNLOADING)
    options = EngineOptions(**settings.options)
    checkpoint = open_checkpoint(
        options.model,
        checkpoint_path=options.checkpoint_path,
        revision=options.revision,
        tokenizer=options.tokenizer,
        quantize=options.quantize,
    )
    page.stamp(Phase.LOADING)
    return build_engine(
        checkpoint,
        options,
        progress=None if settings.log_format == "human" else False,  # a bar, if a person is there to see it
        on_loaded=lambda done, total: page.stamp(Phase.LOADING, done, total),
        around_execute=around,
    )


if __name__ == "__main__":
    sys.exit(run_engine(sys.argv[1:], start_engine))
