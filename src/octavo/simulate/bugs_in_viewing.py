"""Bugs to plant in the engine's view."""

from octavo.engine import viewing
from octavo.simulate.planted_bug import PlantedBug

VIEWING_BUGS = (
    PlantedBug(
        "the block map shows shared ancestors as idle",
        viewing,
        "block_map",
        "node = node.parent",
        "node = None",
    ),
    PlantedBug(
        "the block map assigns private blocks to the wrong slot",
        viewing,
        "block_map",
        "slots.append(slot)",
        "slots.insert(0, slot)",
    ),
)
