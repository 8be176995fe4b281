"""API keys. If keys are set, every endpoint but the probes and the page requires one (see `app.py`)."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Self

from fastapi import Request

from octavo.config import ServerOptions, counted
from octavo.errors import ConfigError
from octavo.fairness.tenant import ONLY_TENANT, Tenant
from octavo.server.budget_keepers import BudgetTransport
from octavo.server.http.connection import OWNER
from octavo.server.http.errors import ApiError
from octavo.server.http.key_file import KeyRole
from octavo.server.http.key_source import Key, KeySource, KeyTable, binding_of
from octavo.server.key_limits import KeyAccounts, KeyedRequest

logger = logging.getLogger(__name__)

RELOAD_SECONDS = 1.0
AUTHORIZATION, X_API_KEY = b"authorization", b"x-api-key"
BEARER = b"bearer"


class Keys:
    """The valid keys, and what the names of the keys have used. Without any key, none is required.

    Owned by the event loop. A server that has started with keys never becomes open.
    """

    def __init__(
        self,
        source: KeySource | None = None,
        *,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        transport: BudgetTransport | None = None,
    ) -> None:
        """Raises ConfigError if the source is unreadable or invalid. `transport`: see `KeyAccounts`."""
        self._source = source
        self._wall_clock = wall_clock
        self._table = KeyTable() if source is None else source.load()
        self.is_required = bool(self._table.keys)
        self.accounts = KeyAccounts(clock, transport)
        self.accounts.update(self._table.limits)

    @classmethod
    def from_options(cls, options: ServerOptions, transport: BudgetTransport | None = None) -> Self:
        return cls(KeySource(options), transport=transport)

    def identify(self, headers: Iterable[tuple[bytes, bytes]]) -> Key | None:
        """Return the key that the headers of a request contain, which may have expired, or None.

        Some clients send one secret in each header and know only one of them. Two different keys identify
        nobody, nor does a header that occurs twice.
        """
        secrets = [(name, value) for name, value in headers if name in (AUTHORIZATION, X_API_KEY)]
        if len(dict(secrets)) < len(secrets):
            return None
        found = [key for key in (self._find(name, value) for name, value in secrets) if key is not None]
        return found[0] if found and all(key is found[0] for key in found) else None

    def _find(self, name: bytes, value: bytes) -> Key | None:
        """Return the key in a header, if it is valid.

        The time reveals nothing about valid keys, because a client cannot choose digests that are similar.
        """
        scheme, _, secret = value.partition(b" ") if name == AUTHORIZATION else (BEARER, b"", value)
        found = self._table.keys.get(hashlib.sha256(secret.strip()).digest())
        return found if scheme.lower() == BEARER else None

    def has_expired(self, key: Key) -> bool:
        return key.expires is not None and key.expires <= self._wall_clock()

    async def keep_reloading(self) -> None:
        """Read the key file again whenever it has changed."""
        while self._source is not None and self._source.can_change:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                self._replace(await asyncio.to_thread(self._source.load_if_changed))
            except ConfigError as error:
                _log_failure(error)
            except Exception:
                logger.exception("cannot reload the API keys: the previous keys stay valid")

    def reload(self) -> None:
        """Read the key file now if it has changed."""
        assert self._source is not None, "only keys from a file can change"
        try:
            self._replace(self._source.load_if_changed())
        except ConfigError as error:
            _log_failure(error)

    def _replace(self, table: KeyTable | None) -> None:
        if table is None:
            return
        self._table = table
        self.accounts.update(table.limits)
        num_keys, num_names = counted(len(table.keys), "key"), counted(len(table.limits), "name")
        logger.info("reloaded the API keys: %s of %s", num_keys, num_names)


def _log_failure(error: ConfigError) -> None:
    logger.error("cannot reload the API keys: the previous keys stay valid: %s", error)


async def require_key(request: Request) -> None:
    """Raise 401 without a valid key, and 429 above a limit of the key. Stores the key for `caller`."""
    keys: Keys = request.app.state.keys
    request.state.key = None
    if not keys.is_required:
        return
    key = keys.identify(request.scope["headers"])
    if key is None:
        raise _unauthorized(
            "a valid API key is needed: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'"
        )
    keyed: KeyedRequest = request.state.keyed
    keyed.name = key.tenant.name
    if keys.has_expired(key):
        raise _unauthorized("this API key has expired: ask the operator of the server for a new one")
    request.state.key = key
    await keyed.begin(
        keys.accounts.of(key.tenant.name), request.scope.get(OWNER), is_counted=request.method == "POST"
    )


def require_operator(request: Request) -> None:
    """Raise 403 if the request has a key without the role `operator`. Called after `require_key`."""
    if not is_operator(request):
        raise ApiError(
            403,
            "this endpoint needs an operator key: add role=operator to the line of a key in the file of"
            " --api-key-file, or use the key of --api-key",
            kind="permission_error",
            code="operator_key_required",
        )


def is_operator(request: Request) -> bool:
    """Whether the request may see everything: it has an operator's key, or the server requires no key."""
    key: Key | None = request.state.key
    return key is None or key.role is KeyRole.OPERATOR


def caller(request: Request) -> Tenant:
    """Return the tenant of the request's key."""
    key: Key | None = request.state.key
    return ONLY_TENANT if key is None else key.tenant


def binding(request: Request) -> bytes:
    """Return the secret that binds what the server remembers or signs to the request's key."""
    key: Key | None = request.state.key
    return binding_of(b"") if key is None else key.binding


def _unauthorized(message: str) -> ApiError:
    return ApiError(
        401,
        message,
        kind="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )
