"""Workloads for a simulated fleet."""

import random
from collections.abc import Sequence
from functools import partial

from octavo.fairness.tenant import Tenant
from octavo.frontend.output import RequestOutput
from octavo.simulate.fleet import SimulatedFleet


class Conversations:
    """Several tenants with a system prompt each hold conversations of several turns.

    Each turn repeats everything before it, so a cache that has the last turn saves most of the prompt.
    """

    def __init__(self, fleet: SimulatedFleet, *, num_tenants: int, num_conversations: int, num_turns: int):
        self._fleet = fleet
        self._rng = random.Random(1)
        self._num_turns = num_turns
        systems = [self._tokens(512) for _ in range(num_tenants)]
        for number in range(num_conversations):
            tenant = number % num_tenants
            start = self._rng.uniform(0, 60)
            self._next_turn(start, systems[tenant], Tenant(f"tenant {tenant}"), num_turns)

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(200) for _ in range(count)]

    def _next_turn(self, when: float, history: Sequence[int], tenant: Tenant, turns_left: int) -> None:
        prompt = [*history, *self._tokens(self._rng.randint(20, 200))]

        def end(output: RequestOutput) -> None:
            if turns_left > 1:
                thinking = self._rng.expovariate(1 / 10)
                answer = output.choices[0].token_ids
                self._next_turn(self._fleet.now + thinking, [*prompt, *answer], tenant, turns_left - 1)

        self._fleet.at(when, lambda: self._fleet.ask(prompt, self._rng.randint(8, 64), end, tenant))


def send_hot_prefix(fleet: SimulatedFleet, *, num_requests: int, per_second: float, prefix: int) -> None:
    """Half of the requests begin with the same tokens; the others have nothing in common."""
    rng = random.Random(2)
    hot = [rng.randrange(200) for _ in range(prefix)]
    when = 0.0
    for number in range(num_requests):
        when += rng.expovariate(per_second)
        own = [rng.randrange(200) for _ in range(rng.randint(20, 200))]
        prompt = [*hot, *own] if number % 2 else own
        max_tokens = rng.randint(16, 64)
        fleet.at(when, partial(fleet.ask, prompt, max_tokens))
