"""Engine processes that die or hang, for the tests in this folder: `python -m engines FOLDER PARENT`.

This is the real engine (with the options in the settings), except that the first chunk of a poisoned prompt
kills the process, every step with a faulty prompt fails, and a step with a hanging request never ends.
"""

import os
import sys
import time

from octavo.engine.core import EngineCore, Execute
from octavo.engine.loop import Around, run_engine
from octavo.engine.process import start_engine
from octavo.link.folder import EngineSettings
from octavo.link.heartbeat import HeartbeatFile
from octavo.plan import StepPlan, StepResult
from octavo.protocol import EngineFacts

POISON = (255, 255)  # no other prompt of the tests begins so
FAULT = 254  # in no other prompt
HANG = 253  # in no other prompt
AT_ONCE = -1e9  # seconds: overdue whatever the timeout of the parent


def start_mortal(
    settings: EngineSettings, heartbeat: HeartbeatFile, around: Around
) -> tuple[EngineCore, EngineFacts]:
    def mortal(execute: Execute) -> Execute:
        hanging: set[int] = set()  # slots

        def run(plan: StepPlan) -> StepResult:
            for opening in plan.opened:
                (hanging.add if HANG in opening.token_ids[: opening.num_prompt] else hanging.discard)(
                    opening.slot
                )
            if any(piece.slot in hanging for piece in plan.slices):
                status = heartbeat.read()
                heartbeat.write(status.phase, timeout=AT_ONCE, request_id=status.request_id)
                time.sleep(1e6)
            if any(not piece.start and piece.token_ids[:2] == POISON for piece in plan.slices):
                os.kill(os.getpid(), 9)
            if any(FAULT in piece.token_ids for piece in plan.slices):
                raise RuntimeError("a fault")
            return execute(plan)

        return around(run)

    return start_engine(settings, heartbeat, mortal)


if __name__ == "__main__":
    sys.exit(run_engine(sys.argv[1:], start_mortal))
