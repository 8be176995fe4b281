"""How long a step takes on the virtual clock."""

from dataclasses import dataclass

from octavo.plan import StepPlan


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step. Multiples of a power of two keep the virtual clock exact."""

    base: float = 1 / 128
    per_token: float = 1 / 1024

    def seconds(self, plan: StepPlan) -> float:
        return self.base + self.per_token * sum([len(piece.token_ids) for piece in plan.slices])
