"""Engine processes that die or hang, for the tests beside this file: `python -m engines FOLDER PARENT`.

The real engine (of the options in the settings), but the first chunk of a poisoned prompt kills the process,
no step with a faulty one succeeds, and none with a request that hangs engines ever ends.
"""

import os
import sys
import time

from octavo.engine.core import EngineCore, Execute
from octavo.engine.loop import Around, run_engine
from octavo.engine.process import start_engine
from octavo.link.folder import EngineSettings
from octavo.link.status_page import StatusPage
from octavo.plan import StepPlan, StepResult
from octavo.protocol import EngineFacts

POISON = (255, 255)  # how no other prompt of the tests begins
FAULT = 254  # in no other prompt either
HANG = 253  # and this
AT_ONCE = -1e9  # seconds: however patient the parent is, it will not wait


def start_mortal(
    settings: EngineSettings, page: StatusPage, around: Around
) -> tuple[EngineCore, EngineFacts]:
    def mortal(execute: Execute) -> Execute:
        hanging: set[int] = set()  # slots

        def run(plan: StepPlan) -> StepResult:
            for opening in plan.opened:
                (hanging.add if HANG in opening.token_ids[: opening.num_prompt] else hanging.discard)(
                    opening.slot
                )
            if any(piece.slot in hanging for piece in plan.slices):
                status = page.read()
                page.stamp(status.phase, patience=AT_ONCE, request_id=status.request_id)
                time.sleep(1e6)
            if any(not piece.start and piece.token_ids[:2] == POISON for piece in plan.slices):
                os.kill(os.getpid(), 9)
            if any(FAULT in piece.token_ids for piece in plan.slices):
                raise RuntimeError("a fault")
            return execute(plan)

        return around(run)

    return start_engine(settings, page, mortal)


if __name__ == "__main__":
    sys.exit(run_engine(sys.argv[1:], start_mortal))
