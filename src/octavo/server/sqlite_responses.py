"""Stored responses in an SQLite file, which survive a restart. See `stored_responses` for the interface."""

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from octavo.errors import ConfigError
from octavo.server.stored_responses import MAX_SHARE, StoredResponse

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
MAX_PENDING_BYTES = 32 << 20  # responses that wait to be written; further ones are not stored
BUSY_SECONDS = 10.0  # another process may hold the file that long

# Triggers keep the sizes exact, also if several servers use the file.
SCHEMA = f"""
CREATE TABLE responses (
    key INTEGER PRIMARY KEY, owner BLOB NOT NULL, id TEXT NOT NULL, tenant TEXT NOT NULL,
    used INTEGER NOT NULL, size INTEGER NOT NULL, previous_id TEXT, UNIQUE (owner, id));
CREATE TABLE contents (key INTEGER PRIMARY KEY, body BLOB NOT NULL, input_items BLOB NOT NULL);
CREATE UNIQUE INDEX by_use ON responses (used);
CREATE INDEX by_tenant ON responses (tenant, used);
CREATE TABLE tenants (tenant TEXT PRIMARY KEY, size INTEGER NOT NULL);
CREATE TRIGGER added AFTER INSERT ON responses BEGIN
    INSERT INTO tenants VALUES (new.tenant, new.size)
        ON CONFLICT (tenant) DO UPDATE SET size = size + new.size;
END;
CREATE TRIGGER removed AFTER DELETE ON responses BEGIN
    DELETE FROM contents WHERE key = old.key;
    UPDATE tenants SET size = size - old.size WHERE tenant = old.tenant;
    DELETE FROM tenants WHERE tenant = old.tenant AND size = 0;
END;
PRAGMA user_version = {SCHEMA_VERSION};
"""
NEXT_USE = "(SELECT COALESCE(MAX(used), 0) + 1 FROM responses)"

Result = TypeVar("Result")


class SqliteResponses:
    """One thread owns the connection, so calls take effect in order and never block the event loop."""

    def __init__(self, path: str, max_bytes: int) -> None:
        """Raises ConfigError if the file cannot be used."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        try:
            self._connection = self._thread.submit(_open, path).result()
        except (OSError, sqlite3.Error, ValueError) as error:
            self._thread.shutdown()
            raise ConfigError(
                f"response_store: cannot use {path} ({error}): give a file that the server may create or a"
                " store that it has created"
            ) from error

    @property
    def is_enabled(self) -> bool:
        return self._max_bytes > 0

    def put(self, owner: bytes, tenant: str, response: StoredResponse) -> None:
        num_bytes = response.num_bytes
        with self._lock:
            if self._pending_bytes + num_bytes > MAX_PENDING_BYTES:
                logger.warning("did not store response %s: the response store is too slow", response.id)
                return
            self._pending_bytes += num_bytes
        self._run(lambda: self._put(owner, tenant, response)).add_done_callback(
            lambda done: self._written(done, response)
        )

    async def get(self, owner: bytes, response_id: str) -> StoredResponse | None:
        return await asyncio.wrap_future(self._run(lambda: self._get(owner, response_id)))

    async def delete(self, owner: bytes, response_id: str) -> bool:
        return await asyncio.wrap_future(self._run(lambda: self._delete(owner, response_id)))

    def close(self) -> None:
        """Finish all writes and close the file."""
        self._run(self._connection.close)
        self._thread.shutdown()

    def _run(self, work: Callable[[], Result]) -> "Future[Result]":
        return self._thread.submit(work)

    def _written(self, done: "Future[None]", response: StoredResponse) -> None:
        with self._lock:
            self._pending_bytes -= response.num_bytes
        if (error := done.exception()) is not None:
            logger.error("cannot store response %s: %s", response.id, error)

    # -- in the thread -----------------------------------------------------------------------------------

    def _put(self, owner: bytes, tenant: str, response: StoredResponse) -> None:
        size = response.num_bytes
        with _Transaction(self._connection) as execute:
            execute("DELETE FROM responses WHERE owner = ? AND id = ?", owner, response.id)
            if size > self._max_bytes // MAX_SHARE:
                return
            row = (owner, response.id, tenant, size, response.previous_id)
            key = execute(f"INSERT INTO responses VALUES (NULL, ?, ?, ?, {NEXT_USE}, ?, ?)", *row).lastrowid
            execute("INSERT INTO contents VALUES (?, ?, ?)", key, response.body, response.input_items)
            while execute("SELECT COALESCE(SUM(size), 0) FROM tenants").fetchone()[0] > self._max_bytes:
                (largest,) = execute(
                    "SELECT tenant FROM tenants ORDER BY size DESC, tenant LIMIT 1"
                ).fetchone()
                execute(
                    "DELETE FROM responses WHERE used ="
                    " (SELECT used FROM responses WHERE tenant = ? ORDER BY used LIMIT 1)",
                    largest,
                )

    def _get(self, owner: bytes, response_id: str) -> StoredResponse | None:
        with _Transaction(self._connection) as execute:
            found = execute(
                "SELECT id, previous_id, body, input_items, key FROM responses JOIN contents USING (key)"
                " WHERE owner = ? AND id = ?",
                owner,
                response_id,
            ).fetchone()
            if found is None:
                return None
            execute(f"UPDATE responses SET used = {NEXT_USE} WHERE key = ?", found[-1])
        return StoredResponse(*found[:-1])

    def _delete(self, owner: bytes, response_id: str) -> bool:
        with _Transaction(self._connection) as execute:
            deleted = execute("DELETE FROM responses WHERE owner = ? AND id = ?", owner, response_id)
            return deleted.rowcount > 0


class _Transaction:
    """Executes statements; all of them take effect, or none."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Callable[..., sqlite3.Cursor]:
        self._connection.execute("BEGIN IMMEDIATE")
        return lambda statement, *values: self._connection.execute(statement, values)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._connection.execute("COMMIT" if error is None else "ROLLBACK")


def _open(path: str) -> sqlite3.Connection:
    # Conversations are private: only the server's user may read the file, and SQLite's files beside it.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (num_tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if version != SCHEMA_VERSION and (version or num_tables):
            raise ValueError("it is not a response store of this version of Octavo")
        if version != SCHEMA_VERSION:
            for statement in _statements(SCHEMA):
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _statements(script: str) -> list[str]:
    """Split a script, because `executescript` would commit the transaction first."""
    statements, begun = [], ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            statements.append(begun)
            begun = ""
    return statements
