"""Admission is fair between tenants: what one tenant queues never rejects another within its part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.fairness.tenant import ONLY_TENANT, Tenant
from octavo.server.admission import DEFAULT_RETRY_AFTER, MAX_IDLE_RATES, MAX_RETRY_AFTER, Admission
from octavo.server.http.errors import ApiError
from unit.fairness.crowd import Clock, tenants

MAX_SEQUENCES = 100
MAX_TOKENS = 1000


def is_accepted(admission: Admission, tenant: Tenant, num_sequences: int, num_tokens: int) -> bool:
    try:
        admission.enter(tenant, num_sequences, num_tokens)
    except ApiError:
        return False
    return True


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 30), st.integers(1, 300), st.booleans()), max_size=80
    )
)
def test_nine_tenants_are_accepted_within_their_part_while_one_floods(
    moves: list[tuple[int, int, int, bool]],
) -> None:
    """A move is a request of a tenant, or its end."""
    flooding, *_ = crowd = tenants(*[1.0] * 10)
    admission = Admission(MAX_SEQUENCES, MAX_TOKENS, lambda: 0.0)
    queued: dict[Tenant, list[tuple[int, int]]] = {tenant: [] for tenant in crowd}
    while is_accepted(admission, flooding, 1, 10):
        queued[flooding].append((1, 10))
    assert len(queued[flooding]) == MAX_SEQUENCES // 2 + MAX_SEQUENCES // 20
    for number, num_sequences, num_tokens, is_end in moves:
        tenant = crowd[number]
        if is_end and queued[tenant]:
            admission.leave(tenant, *queued[tenant].pop())
            continue
        after = [sum(amounts) for amounts in zip(*queued[tenant], (num_sequences, num_tokens), strict=True)]
        is_guaranteed = after[0] <= MAX_SEQUENCES // 20 and after[1] <= MAX_TOKENS // 20
        if is_accepted(admission, tenant, num_sequences, num_tokens):
            queued[tenant].append((num_sequences, num_tokens))
        else:
            assert queued[tenant], "a tenant without waiting sequences was rejected"
            assert not is_guaranteed, "a tenant was rejected within its part"
    for tenant in crowd:
        for amounts in queued[tenant]:
            admission.leave(tenant, *amounts)
    assert (admission.num_sequences, admission.num_tokens) == (0, 0)


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 1000), st.booleans()), max_size=40))
def test_without_keys_the_queue_has_only_its_limits(moves: list[tuple[int, int, bool]]) -> None:
    admission, queued = Admission(MAX_SEQUENCES, MAX_TOKENS, lambda: 0.0), list[tuple[int, int]]()
    for num_sequences, num_tokens, is_end in moves:
        if is_end and queued:
            admission.leave(ONLY_TENANT, *queued.pop())
            continue
        fits = (
            admission.num_sequences + num_sequences <= MAX_SEQUENCES
            and admission.num_tokens + num_tokens <= MAX_TOKENS
        )
        assert is_accepted(admission, ONLY_TENANT, num_sequences, num_tokens) == fits
        if fits:
            queued.append((num_sequences, num_tokens))
        if admission.num_sequences < MAX_SEQUENCES:
            admission.check_queue(ONLY_TENANT)
        else:
            with pytest.raises(ApiError, match=r"^the server is busy: too many requests are waiting$"):
                admission.check_queue(ONLY_TENANT)


def test_retry_after_is_when_half_of_the_tenants_own_queue_has_left() -> None:
    fast, slow, stuck = tenants(1, 1, 1)
    clock = Clock()
    admission = Admission(600, 6000, clock)
    for tenant, count in ((fast, 100), (slow, 60), (stuck, 40)):
        admission.enter(tenant, count, count)
        assert admission.retry_after(tenant) == DEFAULT_RETRY_AFTER
    for tick in range(1, 400):
        clock.now += 0.1
        for tenant, period in ((fast, 1), (slow, 10)):  # ten sequences per second, and one
            if tick % period == 0:
                admission.leave(tenant, 1, 1)
                admission.enter(tenant, 1, 1)
        if tick % 10 == 0:
            assert admission.retry_after(fast) == pytest.approx(100 / 2 / 10, rel=0.05)
            assert admission.retry_after(slow) == pytest.approx(60 / 2 / 1, rel=0.05)
            assert admission.retry_after(stuck) == DEFAULT_RETRY_AFTER
    clock.now += 1000
    assert admission.retry_after(slow) == MAX_RETRY_AFTER


def test_a_rejected_tenant_learns_that_its_own_requests_wait() -> None:
    flooding, other = tenants(1, 1)
    admission = Admission(10, 100, lambda: 0.0)
    while is_accepted(admission, flooding, 1, 1):
        pass
    with pytest.raises(ApiError, match="this key has too many waiting requests") as rejected:
        admission.check_queue(flooding)
    assert (rejected.value.status, rejected.value.code) == (429, "rate_limit_exceeded")
    assert rejected.value.headers["retry-after"] == str(round(DEFAULT_RETRY_AFTER))
    admission.check_queue(other)


def test_requests_beyond_the_limits_do_not_cost_other_tenants_their_part() -> None:
    *large, small = tenants(1, 1, 1)
    admission = Admission(MAX_SEQUENCES, MAX_TOKENS, lambda: 0.0)
    for tenant in large:
        admission.enter(tenant, MAX_SEQUENCES, MAX_TOKENS)  # each had nothing in the queue
    for _ in range(MAX_SEQUENCES // 2 // 3):
        admission.check_queue(small)
        admission.enter(small, 1, 1)
    with pytest.raises(ApiError, match="this key"):
        admission.enter(small, 1, 1)


def test_rates_of_idle_tenants_are_forgotten() -> None:
    clock, busy = Clock(), Tenant("busy", 1.0, 0.0)
    admission = Admission(10, 100, clock)
    for _ in range(2):  # it was idle in between
        admission.enter(busy, 1, 1)
        clock.now += 1
        admission.leave(busy, 1, 1)
    admission.enter(busy, 2, 2)
    for number in range(3 * MAX_IDLE_RATES):
        tenant = Tenant(f"tenant {number}", 1.0, 0.0)
        admission.enter(tenant, 1, 1)
        admission.leave(tenant, 1, 1)
    assert len(admission._rates) == MAX_IDLE_RATES + 1
    assert admission.retry_after(busy) == pytest.approx(1, rel=0.05), "a rate in use was forgotten"
