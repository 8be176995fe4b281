"""A shared room against a model that counts every tenant: bounded, with a guaranteed part for each."""

from hypothesis import given
from hypothesis import strategies as st

from octavo.fairness.shared_room import GUARANTEED, SharedRoom
from octavo.fairness.tenant import ONLY_TENANT, Tenant
from unit.fairness.crowd import tenants

WEIGHTS = st.lists(st.floats(0.1, 10) | st.integers(1, 3).map(float), min_size=1, max_size=7)
MOVES = st.lists(st.tuples(st.integers(0, 6), st.integers(-40, 40), st.booleans()), max_size=80)


class Model:
    """The rule, computed from scratch for every question."""

    def __init__(self, limit: int, everyone: list[Tenant]) -> None:
        self.limit = limit
        self.total = int(GUARANTEED * limit)
        self.used = dict.fromkeys(everyone, 0)
        self.guaranteed = {tenant: int(self.total * tenant.fraction) for tenant in everyone}

    def fits(self, tenant: Tenant, amount: int, lower: int | None) -> bool:
        after = self.used | {tenant: self.used[tenant] + amount}
        reserved = self.total - sum(self.guaranteed.values())  # what rounding leaves over
        for one in after:
            reserved += max(after[one], self.guaranteed[one]) if one != tenant else after[one]
        within = after[tenant] <= self.guaranteed[tenant]
        return reserved <= (self.limit if lower is None or within else lower)


@given(st.integers(1, 200), WEIGHTS, MOVES)
def test_a_room_is_bounded_and_every_tenant_has_its_part(
    limit: int, weights: list[float], moves: list[tuple[int, int, bool]]
) -> None:
    everyone = tenants(*weights)
    room, model = SharedRoom(limit), Model(limit, everyone)
    for number, move, is_limited in moves:
        tenant, lower = everyone[number % len(everyone)], limit * 7 // 8 if is_limited else None
        amount = max(move, -model.used[tenant])
        if amount < 0:
            room.give(tenant, -amount)
        else:
            fits = room.fits(tenant, amount, lower)
            assert fits == model.fits(tenant, amount, lower)
            if not fits:
                continue
            room.take(tenant, amount)
        model.used[tenant] += amount
        assert room.num_used == sum(model.used.values()) <= limit
        for one, used in model.used.items():
            assert room.used_by(one) == used <= room.max_for(one)
            rest = model.guaranteed[one] - used
            assert rest < 0 or room.fits(one, rest, limit * 7 // 8)
    for one, used in model.used.items():
        room.give(one, used)
    assert (room.num_used, room._used, room._guarantees, room._num_covered) == (0, {}, {}, 0)


@given(st.integers(1, 100), st.lists(st.integers(0, 60), max_size=20))
def test_without_keys_a_room_has_only_its_limit(limit: int, amounts: list[int]) -> None:
    room = SharedRoom(limit)
    for amount in amounts:
        assert room.fits(ONLY_TENANT, amount) == (room.num_used + amount <= limit)
        if room.fits(ONLY_TENANT, amount):
            room.take(ONLY_TENANT, amount)


def test_a_tenant_alone_may_fill_all_but_the_parts_of_others() -> None:
    alone, *others = tenants(1, 1, 2)
    room = SharedRoom(800)
    room.take(alone, room.max_for(alone))
    assert room.num_used == 800 - 100 - 200
    assert not room.fits(alone, 1)
    for other in others:
        room.take(other, room.guaranteed_to(other))
        assert not room.fits(other, 1)
    assert room.num_used == 800


@given(WEIGHTS, WEIGHTS, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), max_size=40))
def test_a_room_stays_bounded_when_weights_change(
    before: list[float], after: list[float], moves: list[tuple[int, int]]
) -> None:
    room = SharedRoom(100)
    used: dict[str, int] = {}
    for count, (number, amount) in enumerate(moves):
        everyone = tenants(*(before if count < len(moves) // 2 else after))
        tenant = everyone[number % len(everyone)]
        if room.fits(tenant, amount):
            room.take(tenant, amount)
            used[tenant.name] = used.get(tenant.name, 0) + amount
        assert room.num_used == sum(used.values()) <= 100
    for name, amount in used.items():
        room.give(Tenant(name), amount)
    assert room.num_used == room._num_covered == 0
