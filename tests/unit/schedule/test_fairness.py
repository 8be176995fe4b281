"""The scheduler divides tokens between tenants in proportion to their weights, whatever each of them sends.

Everything is counted in tokens and steps, so the results are the same on every machine.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from octavo.cache import KVManager
from octavo.plan import SliceResult, StepResult
from octavo.protocol import GenerateRequest, SamplingParams
from octavo.schedule import Scheduler, SchedulerConfig

pytestmark = pytest.mark.usefixtures("untraced")

MAX_RUNNING = 16
WARM_UP_STEPS = 500
STEPS = 4000


class Tenants:
    """A scheduler whose tenants each keep a number of requests in flight, and the tokens that each gets."""

    def __init__(
        self,
        connections: Mapping[str, int],
        weights: Mapping[str, float] | None = None,
        *,
        lengths: Mapping[str, tuple[int, int]] | None = None,
        num_blocks: int = 4000,
        rank: Callable[[str], int] = lambda tenant: 0,
    ) -> None:
        self.tokens: Counter[str] = Counter()
        self.scheduler = Scheduler(
            SchedulerConfig(MAX_RUNNING, 1024, max_step_tokens=256), KVManager(num_blocks, 16)
        )
        self._weights, self._lengths, self._rank = weights or {}, lengths or {}, rank
        self._connections = connections
        self._rng = random.Random(7)
        self._count = 0
        self._tenants: dict[str, str] = {}  # by request id
        self._slots: dict[int, str] = {}
        self._computed: dict[str, int] = {}
        for tenant, number in connections.items():
            for _ in range(number):
                self.add(tenant)

    def add(self, tenant: str, priority: int = 0, max_tokens: int | None = None) -> str:
        rng = self._rng
        self._count += 1
        request_id = f"r{self._count}"
        self._tenants[request_id] = tenant
        shortest, longest = self._lengths.get(tenant, (10, 60))
        self.scheduler.add(
            GenerateRequest(
                request_id=request_id,
                prompt_ids=tuple(rng.choices(range(1000), k=rng.randint(5, 100))),
                params=SamplingParams(max_tokens=max_tokens or rng.randint(shortest, longest), seed=1),
                priority=priority,
                tenant=tenant,
                weight=self._weights.get(tenant, 1.0),
                rank=self._rank(tenant),
            ),
            0.0,
        )
        return request_id

    def step(self) -> list[str]:
        """Run a step and return the ids of the admitted requests. A new request replaces each that ended."""
        plan = self.scheduler.schedule(0.0)
        for opening in plan.opened:
            self._slots[opening.slot] = opening.request_id
        for piece in plan.slices:
            self._count_tokens(self._slots[piece.slot], piece.start, piece.start + len(piece.token_ids))
        drawn = [SliceResult((5,) if piece.num_sampled else ()) for piece in plan.slices]
        self.scheduler.apply(plan, StepResult(tuple(drawn)), 0.0)
        for output in self.scheduler.drain():
            if output.finish is not None and self._tenants[output.request_id] in self._connections:
                self.add(self._tenants[output.request_id])
        return [opening.request_id for opening in plan.opened]

    def _count_tokens(self, request_id: str, start: int, end: int) -> None:
        """Count computed tokens, but not again those that were computed before a preemption."""
        computed = self._computed.get(request_id, 0)
        self.tokens[self._tenants[request_id]] += max(0, end - max(start, computed))
        self._computed[request_id] = max(computed, end)

    def run(self, steps: int = STEPS) -> Counter[str]:
        """Return the tokens of each tenant over `steps` steps, after a warm-up."""
        for _ in range(WARM_UP_STEPS):
            self.step()
        self.tokens.clear()
        for _ in range(steps):
            self.step()
        return self.tokens


def equals(number: int, connections: int) -> dict[str, int]:
    return {f"key {index}": connections for index in range(number)}


def jain(values: list[int]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def test_a_flood_does_not_take_tokens_from_nine_others(figure: Callable[[str], None]) -> None:
    """The others keep four requests in flight each; among ten equals, so does the tenth."""
    among_equals = Tenants(equals(10, 4)).run()
    beside_flood = Tenants(equals(10, 4) | {"key 0": 550}).run()
    ratios = [beside_flood[key] / among_equals[key] for key in among_equals if key != "key 0"]
    figure(f"fairness: nine keys beside a flood of 550 get {min(ratios):.3f} of their tokens, at least")
    assert min(ratios) >= 0.9


@pytest.mark.parametrize("num_blocks", [4000, 150], ids=["enough blocks", "few blocks"])
def test_ten_equal_floods_get_equal_tokens(num_blocks: int, figure: Callable[[str], None]) -> None:
    tokens = Tenants(equals(10, 100), num_blocks=num_blocks).run()
    index = jain(list(tokens.values()))
    figure(f"fairness: Jain's index of ten equal floods is {index:.5f} with {num_blocks} blocks")
    assert index >= 0.95


def test_requests_of_different_length_get_equal_tokens() -> None:
    tokens = Tenants({"short": 50, "long": 50}, lengths={"short": (1, 5), "long": (300, 600)}).run()
    assert tokens["short"] == pytest.approx(tokens["long"], rel=0.05)


@pytest.mark.parametrize("weight", [3.0, 0.25])
def test_tokens_are_proportional_to_weights(weight: float, figure: Callable[[str], None]) -> None:
    tokens = Tenants({"weighted": 100, "other": 100}, {"weighted": weight}).run()
    ratio = tokens["weighted"] / tokens["other"]
    figure(f"fairness: a weight of {weight} gets {ratio:.3f} times the tokens")
    assert ratio == pytest.approx(weight, rel=0.05)


def test_a_single_request_is_admitted_within_two_steps_beside_a_flood(figure: Callable[[str], None]) -> None:
    tenants = Tenants({"flood": 550}, lengths={"flood": (500, 800)})
    waits = []
    for _ in range(100):
        for _ in range(20):
            tenants.step()
        name = tenants.add("single", max_tokens=10)
        waits.append(next(number for number in range(1, 100) if name in tenants.step()))
    figure(f"fairness: a single request beside a flood is admitted after at most {max(waits)} steps")
    assert max(waits) <= 2


def test_priority_orders_only_the_requests_of_its_own_tenant() -> None:
    tenants = Tenants({})
    for _ in range(MAX_RUNNING):
        tenants.add("patient", max_tokens=500)
    while tenants.scheduler.stats().num_waiting:
        tenants.step()
    urgent = [tenants.add("urgent", priority=-(1 << 31), max_tokens=500) for _ in range(100)]
    admitted = [name for _ in range(200) for name in tenants.step()]
    running = Counter(sequence.request.tenant for sequence in tenants.scheduler.running())
    # Preemption leaves a tenant one slot above its share: that one changes hands when a sequence ends.
    assert running == {"patient": MAX_RUNNING // 2 + 1, "urgent": MAX_RUNNING // 2 - 1}
    assert admitted == urgent[: MAX_RUNNING // 2 - 1], "none was preempted again"


def test_a_tenant_at_its_share_takes_no_slots_from_a_tenant_above() -> None:
    """The share of `small` is 1.8 slots. The slots of the flood beyond its share are not for `small`."""
    tenants = Tenants({}, {"small": 0.25})
    for _ in range(MAX_RUNNING):
        tenants.add("flood", max_tokens=500)
    while tenants.scheduler.stats().num_waiting:
        tenants.step()
    tenants.add("other", max_tokens=500)
    for _ in range(3):
        tenants.add("small", max_tokens=500)
    for _ in range(100):
        tenants.step()
    running = Counter(sequence.request.tenant for sequence in tenants.scheduler.running())
    assert running == {"flood": MAX_RUNNING - 2, "other": 1, "small": 1}


def test_a_rank_orders_tenants() -> None:
    tenants = Tenants({"last": 20, "first": 20}, rank=lambda tenant: 0 if tenant == "first" else 1)
    assert tenants.run(500)["last"] == 0


def test_a_pause_neither_saves_up_service_nor_clears_an_account() -> None:
    tenants = Tenants({"always": 20, "later": 0})
    for _ in range(1000):
        tenants.step()
    for _ in range(20):
        tenants.add("later")
    tenants.tokens.clear()
    for _ in range(STEPS):
        tenants.step()
    assert tenants.tokens["later"] == pytest.approx(tenants.tokens["always"], rel=0.05)


def test_sequences_of_a_flood_all_finish_although_others_preempt_them() -> None:
    """A tenant below its share preempts the flood's newest sequences again and again."""
    tenants = Tenants({})
    for _ in range(MAX_RUNNING * 2):
        tenants.add("flood", max_tokens=200)
    names = set()
    for number in range(2000):
        if number % 5 == 0:
            names.add(tenants.add("single", max_tokens=4))
        tenants.step()
    left = {sequence.request.tenant for sequence in tenants.scheduler.running()}
    assert "flood" not in left
    assert tenants.scheduler.stats().preemptions > 0
