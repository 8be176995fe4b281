"""Stored responses: both stores behave like a list that is searched, and the file survives a restart."""

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.server import sqlite_responses
from octavo.server.sqlite_responses import SqliteResponses
from octavo.server.stored_responses import (
    ENTRY_BYTES,
    MAX_SHARE,
    MemoryResponses,
    ResponseStore,
    StoredResponse,
)

MAX_BYTES = 16 * ENTRY_BYTES
OWNERS = {b"a": "anna", b"b": "bert", b"c": "bert"}  # with their tenants


class NaiveStore:
    """All responses in a list, least recently used first."""

    def __init__(self) -> None:
        self.stored: list[tuple[bytes, str, StoredResponse]] = []

    def put(self, owner: bytes, tenant: str, response: StoredResponse) -> None:
        self.delete(owner, response.id)
        if response.num_bytes > MAX_BYTES // MAX_SHARE:
            return
        self.stored.append((owner, tenant, response))
        while sum(one.num_bytes for _, _, one in self.stored) > MAX_BYTES:
            largest = max(sorted(set(OWNERS.values())), key=self._used)
            self.stored.remove(next(entry for entry in self.stored if entry[1] == largest))

    def get(self, owner: bytes, response_id: str) -> StoredResponse | None:
        for entry in self.stored:
            if (entry[0], entry[2].id) == (owner, response_id):
                self.stored.remove(entry)
                self.stored.append(entry)
                return entry[2]
        return None

    def delete(self, owner: bytes, response_id: str) -> bool:
        kept = [entry for entry in self.stored if (entry[0], entry[2].id) != (owner, response_id)]
        self.stored, was = kept, len(self.stored)
        return len(kept) < was

    def _used(self, tenant: str) -> int:
        return sum(one.num_bytes for _, whose, one in self.stored if whose == tenant)


owners, ids = st.sampled_from(sorted(OWNERS)), st.sampled_from([f"resp_{number}" for number in range(12)])
actions = st.one_of(
    st.tuples(st.just("put"), owners, ids, st.integers(0, ENTRY_BYTES + 10)),
    st.tuples(st.sampled_from(["get", "delete"]), owners, ids, st.just(0)),
)


async def check_like_naive(store: ResponseStore, steps: list[tuple[str, bytes, str, int]]) -> None:
    naive = NaiveStore()
    for number, (action, owner, response_id, size) in enumerate(steps):
        if action == "put":
            response = StoredResponse(response_id, None, b"%d" % number, b"x" * size)
            store.put(owner, OWNERS[owner], response)
            naive.put(owner, OWNERS[owner], response)
        elif action == "get":
            assert await store.get(owner, response_id) == naive.get(owner, response_id)
        else:
            assert await store.delete(owner, response_id) == naive.delete(owner, response_id)
    for owner, _, response in list(naive.stored):
        assert await store.get(owner, response.id) == response
    present = {(owner, response.id) for owner, _, response in naive.stored}
    for owner in OWNERS:
        for number in range(12):
            if (owner, f"resp_{number}") not in present:
                assert await store.get(owner, f"resp_{number}") is None


@settings(deadline=None)
@given(st.lists(actions, max_size=60))
def test_the_store_in_memory(steps: list[tuple[str, bytes, str, int]]) -> None:
    asyncio.run(check_like_naive(MemoryResponses(MAX_BYTES), steps))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(actions, max_size=60))
def test_the_store_in_a_file(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bytes, str, int]]
) -> None:
    store = SqliteResponses(str(tmp_path_factory.mktemp("store") / "responses.db"), MAX_BYTES)
    try:
        asyncio.run(check_like_naive(store, steps))
    finally:
        store.close()


def response(number: int, content: bytes = b"{}") -> StoredResponse:
    return StoredResponse(f"resp_{number}", None if not number else f"resp_{number - 1}", content, b"[]")


def fill(path: Path, *numbers: int) -> None:
    store = SqliteResponses(str(path), MAX_BYTES)
    for number in numbers:
        store.put(b"a", "anna", response(number))
    store.close()


def test_the_file_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    fill(path, 0, 1, 2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store = SqliteResponses(str(path), MAX_BYTES)
    for number in range(3):
        assert asyncio.run(store.get(b"a", f"resp_{number}")) == response(number)
    store.close()
    fill(path, *range(3, 40))  # the bound counts what was there before
    with sqlite3.connect(path) as connection:
        (size,) = connection.execute("SELECT SUM(size) FROM responses").fetchone()
        (counted,) = connection.execute("SELECT SUM(size) FROM tenants").fetchone()
        (num_contents,) = connection.execute("SELECT COUNT(*) FROM contents").fetchone()
        (num_responses,) = connection.execute("SELECT COUNT(*) FROM responses").fetchone()
    assert size == counted <= MAX_BYTES
    assert num_contents == num_responses > 0


def test_without_room_nothing_is_stored() -> None:
    store = MemoryResponses(0)
    assert not store.is_enabled
    store.put(b"a", "anna", response(0))
    assert asyncio.run(store.get(b"a", "resp_0")) is None


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE precious (x)")
    text = tmp_path / "text"
    text.write_text("hello " * 1000)
    for path in (other, text, tmp_path / "missing" / "file", tmp_path):
        with pytest.raises(ConfigError, match="response_store"):
            SqliteResponses(str(path), MAX_BYTES)
    assert text.read_text() == "hello " * 1000


def test_writes_that_wait_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_responses, "MAX_PENDING_BYTES", 2 * response(0).num_bytes - 1)
    store = SqliteResponses(str(tmp_path / "responses.db"), MAX_BYTES)
    blocker = sqlite3.connect(tmp_path / "responses.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    store.put(b"a", "anna", response(0))
    store.put(b"a", "anna", response(1))
    blocker.execute("COMMIT")
    blocker.close()
    assert asyncio.run(store.get(b"a", "resp_0")) == response(0)
    assert asyncio.run(store.get(b"a", "resp_1")) is None
    assert "did not store response resp_1" in caplog.text
    store.close()
