"""The state that a worker keeps for each slot between steps: block table and sampling state."""

from array import array

from octavo.ops.batch import INTEGER
from octavo.plan import StepPlan
from octavo.sampling import RowState


class Slots:
    """Mutated by ModelRunner only. A closed slot keeps no state of its owner."""

    def __init__(self, num_slots: int) -> None:
        self.tables = [array(INTEGER) for _ in range(num_slots)]
        self.states: list[RowState | None] = [None] * num_slots

    def update(self, plan: StepPlan) -> None:
        """Apply the slot and block table changes of the plan."""
        for slot in plan.closed:
            self.states[slot] = None
        for opening in plan.opened:
            self.states[opening.slot] = RowState(opening)
        for piece in plan.slices:
            if piece.block_ids:
                self.tables[piece.slot][piece.table_from :] = array(INTEGER, piece.block_ids)

    def state(self, slot: int) -> RowState:
        state = self.states[slot]
        assert state is not None, "the plan has a slice for a slot that is not open"
        return state
