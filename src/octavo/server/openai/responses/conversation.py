"""The stored part of a conversation: earlier responses, and the items that references name."""

import hashlib
from collections.abc import Sequence

import msgspec
from fastapi import Request

from octavo.config import format_size
from octavo.server.http.budget import SMALL_BYTES, Holding
from octavo.server.http.errors import ApiError, invalid
from octavo.server.http.keys import binding
from octavo.server.http.sse import encode
from octavo.server.openai.responses.items import REFERENCE, Item, response_of_item
from octavo.server.openai.schema import MAX_MESSAGES
from octavo.server.state import ServerState
from octavo.server.stored_responses import ResponseStore, StoredResponse


def owner_of(request: Request) -> bytes:
    """Return a name for the request's key that reveals nothing about it."""
    return hashlib.blake2b(binding(request), digest_size=16, person=b"octavo responses").digest()


class StoredConversation:
    """Reads stored responses for one request, as much as a body may contain. Owned by the request's task."""

    def __init__(self, request: Request) -> None:
        state: ServerState = request.app.state.server
        self._store: ResponseStore = state.responses
        self._owner = owner_of(request)
        self._holding: Holding = request.state.holding
        self._max_bytes = state.options.max_body
        self._num_bytes = 0
        self._num_items = 0

    async def earlier_items(self, previous_id: str | None) -> list[Item]:
        """Return input and output of the response and of all that it continues, oldest first."""
        chain: list[list[Item]] = []
        param, current = "previous_response_id", previous_id
        while current is not None:
            stored = await self._store.get(self._owner, current)
            if stored is None:
                raise _not_found(current, previous_id)
            self._count(len(stored.body) + len(stored.input_items), param)
            items = await self._decoded(stored)
            self._count_items(len(items), param)
            chain.append(items)
            current = stored.previous_id
        return [item for items in reversed(chain) for item in items]

    async def resolved(self, items: Sequence[Item]) -> list[Item]:
        """Return the items of a request with those that its references name."""
        known: dict[str, Item] = {}
        result = []
        for number, item in enumerate(items):
            if item["type"] != REFERENCE:
                result.append(item)
                continue
            where = f"input[{number}].id"
            if item["id"] not in known:
                known |= await self._items_of(item["id"], where)
            if (found := known.get(item["id"])) is None:
                raise invalid(
                    f"{where}: there is no stored item {item['id'][:100]!r}: send the item itself", where
                )
            self._count(len(encode(found)), where)  # each time: many references may name one large item
            result.append({key: value for key, value in found.items() if key not in ("id", "status")})
        return result

    async def _items_of(self, item_id: str, where: str) -> dict[str, Item]:
        response_id = response_of_item(item_id)
        stored = None if response_id is None else await self._store.get(self._owner, response_id)
        if stored is None:
            return {}
        self._count(len(stored.body) + len(stored.input_items), where)
        return {item["id"]: item for item in await self._decoded(stored)}

    async def _decoded(self, stored: StoredResponse) -> list[Item]:
        if len(stored.body) + len(stored.input_items) <= SMALL_BYTES:
            return items_of(stored)
        async with self._holding.turn():
            return items_of(stored)

    def _count(self, num_bytes: int, param: str) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            limit = format_size(self._max_bytes)
            raise ApiError(
                413,
                f"the stored part of the conversation is larger than {limit}: continue it in a new response"
                " with less input, or send only the items that are needed",
                param=param,
                code="request_too_large",
            )
        self._holding.take(num_bytes)

    def _count_items(self, num_items: int, param: str) -> None:
        self._num_items += num_items
        if self._num_items > MAX_MESSAGES:
            raise invalid(
                f"the stored conversation has more than {MAX_MESSAGES} items: begin a new one", param
            )


def items_of(stored: StoredResponse) -> list[Item]:
    given: list[Item] = msgspec.json.decode(stored.input_items)
    output: list[Item] = msgspec.json.decode(stored.body)["output"]
    return given + output


def _not_found(missing: str, asked: str | None) -> ApiError:
    earlier = "" if missing == asked else f" continues {missing[:100]!r}, which was"
    return ApiError(
        400,
        f"Previous response with id {(asked or missing)[:100]!r}{earlier} not found: it was never stored, or"
        " it has been deleted or displaced by newer ones. Send the whole conversation as input.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
