"""Duration of a step on the virtual clock."""

from dataclasses import dataclass

from octavo.plan import StepPlan


@dataclass(frozen=True)
class StepCost:
    """Seconds per step and per token. Multiples of a power of two keep the virtual clock exact."""

    base: float = 1 / 128
    per_token: float = 1 / 1024

    def seconds(self, plan: StepPlan) -> float:
        return self.base + self.per_token * sum([len(piece.token_ids) for piece in plan.slices])
