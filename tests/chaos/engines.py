"""Engine processes that die, for the tests beside this file: `python -m engines FOLDER PARENT`.

The real engine (of the options in the settings), but the first chunk of a poisoned prompt kills the process,
and no step with a faulty one succeeds.
"""

import os
import sys

from octavo.engine.core import EngineCore, Execute
from octavo.engine.loop import Around, run_engine
from octavo.engine.process import start_engine
from octavo.link.folder import EngineSettings
from octavo.link.status_page import StatusPage
from octavo.plan import StepPlan, StepResult
from octavo.protocol import EngineFacts

POISON = (255, 255)  # how no other prompt of the tests begins
FAULT = 254  # in no other prompt either


def start_mortal(
    settings: EngineSettings, page: StatusPage, around: Around
) -> tuple[EngineCore, EngineFacts]:
    def mortal(execute: Execute) -> Execute:
        def run(plan: StepPlan) -> StepResult:
            if any(not piece.start and piece.token_ids[:2] == POISON for piece in plan.slices):
                os.kill(os.getpid(), 9)
            if any(FAULT in piece.token_ids for piece in plan.slices):
                raise RuntimeError("a fault")
            return execute(plan)

        return around(run)

    return start_engine(settings, page, mortal)


if __name__ == "__main__":
    sys.exit(run_engine(sys.argv[1:], start_mortal))
