"""Stored responses, for `previous_response_id` and retrieval. This module keeps them in memory.

They are bounded in bytes. When room is needed, the tenant that uses the most loses its least recently used
response, so no tenant can displace the responses of tenants that use less than itself.
"""

import threading
from collections import Counter, OrderedDict
from typing import Protocol

import msgspec

MAX_SHARE = 8  # one response may use 1/MAX_SHARE of the bytes
ENTRY_BYTES = 1 << 10  # memory for a response without its content

Name = tuple[bytes, str]  # whose response it is, and its id


class StoredResponse(msgspec.Struct, frozen=True):
    id: str
    previous_id: str | None  # of the response that this one continues
    body: bytes  # the response, as JSON
    input_items: bytes  # its own input, as a JSON list

    @property
    def num_bytes(self) -> int:
        return ENTRY_BYTES + len(self.body) + len(self.input_items)


class ResponseStore(Protocol):
    """`owner` is a digest of an API key: no key can read the responses of another."""

    @property
    def is_enabled(self) -> bool:
        """Whether any response can be stored."""

    def put(self, owner: bytes, tenant: str, response: StoredResponse) -> None:
        """Store a response, or replace the one with its id. Does not block; any thread may call it."""

    async def get(self, owner: bytes, response_id: str) -> StoredResponse | None:
        """Return a response. Sees everything that was put before."""

    async def delete(self, owner: bytes, response_id: str) -> bool:
        """Delete a response. Return whether there was one."""

    def close(self) -> None: ...


class MemoryResponses:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._responses: dict[Name, tuple[str, StoredResponse]] = {}  # with the tenant
        self._by_tenant: dict[str, OrderedDict[Name, int]] = {}  # sizes, least recently used first
        self._sizes: Counter[str] = Counter()  # bytes, by tenant
        self.num_bytes = 0

    @property
    def is_enabled(self) -> bool:
        return self._max_bytes > 0

    def put(self, owner: bytes, tenant: str, response: StoredResponse) -> None:
        name, num_bytes = (owner, response.id), response.num_bytes
        with self._lock:
            self._forget(name)
            if num_bytes > self._max_bytes // MAX_SHARE:
                return
            self._responses[name] = (tenant, response)
            self._by_tenant.setdefault(tenant, OrderedDict())[name] = num_bytes
            self._sizes[tenant] += num_bytes
            self.num_bytes += num_bytes
            while self.num_bytes > self._max_bytes:
                largest = min(self._sizes, key=lambda one: (-self._sizes[one], one))
                self._forget(next(iter(self._by_tenant[largest])))

    async def get(self, owner: bytes, response_id: str) -> StoredResponse | None:
        with self._lock:
            tenant, response = self._responses.get((owner, response_id), ("", None))
            if response is not None:
                self._by_tenant[tenant].move_to_end((owner, response_id))
            return response

    async def delete(self, owner: bytes, response_id: str) -> bool:
        with self._lock:
            return self._forget((owner, response_id))

    def close(self) -> None:
        """Nothing remains open."""

    def _forget(self, name: Name) -> bool:
        if name not in self._responses:
            return False
        tenant, response = self._responses.pop(name)
        del self._by_tenant[tenant][name]
        self._sizes[tenant] -= response.num_bytes
        self.num_bytes -= response.num_bytes
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant], self._sizes[tenant]
        return True
