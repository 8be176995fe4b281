"""API keys. If keys are set, every endpoint but the probes and the page requires one (see `app.py`)."""

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fastapi import Request

from octavo.config import ServerOptions
from octavo.errors import ConfigError
from octavo.server.http.errors import ApiError

MAX_KEY_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class Key:
    identity: str  # keys of one identity share their prefix cache
    digest: bytes


@dataclass(frozen=True)
class Keys:
    """The valid keys. Without any, no key is required."""

    keys: tuple[Key, ...] = ()

    @classmethod
    def from_options(cls, options: ServerOptions) -> Self:
        given = [] if options.api_key is None else [("", options.api_key)]
        if options.api_key_file is not None:
            given += _read_key_file(Path(options.api_key_file))
        return cls(tuple(_key(name, secret) for name, secret in given))

    def identify(self, authorization: bytes | None) -> str | None:
        """Return the identity of the key, or None. Takes the same time for valid and invalid keys."""
        scheme, _, secret = (authorization or b"").partition(b" ")
        digest = hashlib.sha256(secret.strip()).digest()
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key.identity
        return found if scheme.lower() == b"bearer" else None


async def require_key(request: Request) -> None:
    """Raise 401 without a valid key. Stores the identity for `caller`."""
    keys: Keys = request.app.state.keys
    if not keys.keys:
        request.state.identity = ""
        return
    headers = [value for name, value in request.scope["headers"] if name == b"authorization"]
    identity = keys.identify(headers[0] if len(headers) == 1 else None)
    if identity is None:
        message = "a valid API key is needed: send it as 'Authorization: Bearer KEY'"
        raise ApiError(
            401,
            message,
            kind="authentication_error",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
    request.state.identity = identity


def caller(request: Request) -> str:
    """Return the identity of the request's key; empty if no key is required."""
    identity: str = request.state.identity
    return identity


def _key(name: str, secret: str) -> Key:
    digest = hashlib.sha256(secret.encode()).digest()
    return Key(name or digest.hex()[:16], digest)


def _read_key_file(path: Path) -> list[tuple[str, str]]:
    try:
        content = path.read_bytes()[:MAX_KEY_FILE_BYTES].decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file: cannot read {path} as text; give a UTF-8 file") from error
    rows = [
        line.split() for line in content.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    if not rows or any(len(row) > 2 for row in rows):
        raise ConfigError(f"api_key_file: each line of {path} must be a key, or a name, a space and a key")
    return [(row[0] if len(row) == 2 else "", row[-1]) for row in rows]
