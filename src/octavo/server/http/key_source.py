"""Where the API keys come from: the option `api_key` and the file of `api_key_file`, which may change."""

import hashlib
import os
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from octavo.config import ServerOptions
from octavo.errors import ConfigError
from octavo.fairness.tenant import Tenant
from octavo.server.http.key_file import (
    MAX_KEY_FILE_BYTES,
    HashedKey,
    KeyFile,
    KeyLimits,
    KeyRole,
    NameOptions,
    hashed_key,
    parse_key_file,
)

Version = tuple[int, int, int]  # modification time, size and inode


@dataclass(frozen=True)
class Key:
    tenant: Tenant  # keys of one tenant share their prefix cache and their limits
    role: KeyRole
    expires: float | None = None  # in seconds since 1970; None: never
    # A secret that every server with this key derives. Binds event ids and idempotency keys to the key.
    binding: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class KeyTable:
    """All keys at one moment, and the limits of each name."""

    keys: MappingProxyType[bytes, Key] = field(default_factory=lambda: MappingProxyType({}))  # by SHA-256
    limits: MappingProxyType[str, KeyLimits] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, file: KeyFile, api_key: str | None) -> Self:
        """Return the table. `api_key` is an operator's key."""
        hashed, names = list(file.keys), dict(file.names)
        if api_key is not None:
            own = hashed_key("", api_key)
            if any(key.digest == own.digest for key in hashed):
                raise ConfigError("api_key_file: the file contains the key of api_key: remove one of them")
            hashed.append(own)
            names[own.name] = NameOptions(role=KeyRole.OPERATOR)
        total = sum(options.weight for options in names.values())

        def make(key: HashedKey) -> Key:
            options = names[key.name]
            tenant = Tenant(key.name, options.weight, options.weight / total)
            return Key(tenant, options.role, key.expires, binding_of(key.digest))

        limits = {name: options.limits for name, options in names.items()}
        keys = {key.digest: make(key) for key in hashed}
        return cls(MappingProxyType(keys), MappingProxyType(limits))


def binding_of(digest: bytes) -> bytes:
    """Return the binding of a key, or of a server without keys if `digest` is empty."""
    return hashlib.blake2b(digest, digest_size=32, person=b"octavo binding").digest()


class Unreadable(ConfigError):
    """The file cannot be read now."""


class KeySource:
    """Used by one thread at a time."""

    def __init__(self, options: ServerOptions) -> None:
        self._api_key = options.api_key
        self._path = options.api_key_file
        self._version: Version | None = None  # of the file, when it was last read; None: there was none
        self._is_unread = False  # the last attempt to read this version failed

    @property
    def can_change(self) -> bool:
        return self._path is not None

    def load(self) -> KeyTable:
        """Return the keys. Raises ConfigError if the file is unreadable or invalid."""
        if self._path is None:
            return KeyTable.of(KeyFile(), self._api_key)
        return KeyTable.of(parse_key_file(self._read(self._path), self._path), self._api_key)

    def load_if_changed(self) -> KeyTable | None:
        """Return the keys if the file has changed since the last call. Raises like `load`, once per change.

        A file that could not be read is tried again by every call.
        """
        if self._path is None:
            return None
        try:
            version = _version_of(os.stat(self._path))
        except (OSError, ValueError):
            version = None
        is_same = version == self._version
        if is_same and not self._is_unread:
            return None
        self._version = version
        try:
            return self.load()
        except Unreadable:
            if is_same:
                return None
            raise

    def _read(self, path: str) -> bytes:
        self._is_unread = True
        try:
            with open(path, "rb") as file:
                # Taken before the content, so that a change during the read is noticed by the next call.
                self._version = _version_of(os.fstat(file.fileno()))
                content = file.read(MAX_KEY_FILE_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "invalid path"
            raise Unreadable(f"api_key_file: cannot read {path} ({reason}): give a readable file") from error
        self._is_unread = False
        return content


def _version_of(stat: os.stat_result) -> Version:
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
