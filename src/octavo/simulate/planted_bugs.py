"""All bugs that the simulation must find.

If the code changes so that a bug no longer applies, planting it fails. Rewrite the bug, do not delete it.
"""

from octavo.simulate.bugs_in_cache import BLOCK_POOL_BUGS, KV_MANAGER_BUGS, RADIX_BUGS
from octavo.simulate.bugs_in_drafts import (
    ACCEPTED_DRAFT_BUGS,
    DRAFT_WORKER_BUGS,
    GRANT_BUGS,
    PLANNED_DRAFT_BUGS,
)
from octavo.simulate.bugs_in_fairness import FAIRNESS_BUGS
from octavo.simulate.bugs_in_schedule import SCHEDULER_BUGS, SEQUENCE_AND_QUEUE_BUGS
from octavo.simulate.bugs_in_viewing import VIEWING_BUGS
from octavo.simulate.fake_worker import FakeWorker, Slot
from octavo.simulate.planted_bug import PlantedBug

WORKER_BUGS = (
    PlantedBug("stale slot state", Slot, "open", "self.tally = sum(", "self.tally += sum("),
    PlantedBug(
        "a worker does not replace blocks in its table",
        FakeWorker,
        "_read",
        "table[piece.table_from :] = piece.block_ids",
        "table += piece.block_ids[len(table) - piece.table_from :]",
    ),
)

ALL_BUGS = (
    *BLOCK_POOL_BUGS,
    *KV_MANAGER_BUGS,
    *RADIX_BUGS,
    *SEQUENCE_AND_QUEUE_BUGS,
    *SCHEDULER_BUGS,
    *FAIRNESS_BUGS,
    *VIEWING_BUGS,
    *PLANNED_DRAFT_BUGS,
    *GRANT_BUGS,
    *ACCEPTED_DRAFT_BUGS,
    *WORKER_BUGS,
    *DRAFT_WORKER_BUGS,
)
