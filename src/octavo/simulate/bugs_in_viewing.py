"""Bugs to plant in what a view shows."""

from octavo.engine import viewing
from octavo.simulate.planted_bug import PlantedBug

VIEWING_BUGS = (
    PlantedBug(
        "the page map shows shared ancestors as idle",
        viewing,
        "page_map",
        "node = node.parent",
        "node = None",
    ),
    PlantedBug(
        "the page map gives private pages to the next slot",
        viewing,
        "page_map",
        "slots.append(slot)",
        "slots.insert(0, slot)",
    ),
)
