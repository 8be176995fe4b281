"""The file of API keys: `[name] key [option=value ...]` on each line, documented in docs/server.md.

Keys are hashed while they are read. No error message contains a word that could be (part of) a key.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from octavo.config.lines import numbered_words
from octavo.errors import ConfigError

MAX_KEY_FILE_BYTES = 1 << 20
MIN_KEY_CHARACTERS = 8
MAX_NAME_CHARACTERS = 64
WEIGHT = (0.01, 1000.0)
MAX_LIMIT = 10**12

NAME = re.compile(rf"[A-Za-z0-9._@-]{{1,{MAX_NAME_CHARACTERS}}}")
SECRET = re.compile(rf"[!-~]{{{MIN_KEY_CHARACTERS},}}")
# Base64 ends with "=". Any other word with "=", or one like "weight=", is meant as an option.
LIKE_AN_OPTION = re.compile(r"[a-z_]+=.*|[^=]*=+[^=].*")


class KeyRole(StrEnum):
    INFERENCE = "inference"
    OPERATOR = "operator"


@dataclass(frozen=True)
class KeyLimits:
    """Limits of all keys of one name together. None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_streams: int | None = None
    max_connections: int | None = None


@dataclass(frozen=True)
class NameOptions:
    weight: float = 1.0
    role: KeyRole = KeyRole.INFERENCE
    limits: KeyLimits = KeyLimits()


@dataclass(frozen=True)
class HashedKey:
    name: str
    digest: bytes
    expires: float | None = None  # in seconds since 1970; None: never


@dataclass(frozen=True)
class KeyFile:
    keys: tuple[HashedKey, ...] = ()
    names: Mapping[str, NameOptions] = field(default_factory=lambda: MappingProxyType({}))


LIMITS = tuple(limit.name for limit in fields(KeyLimits))
OPTIONS = ("weight", "role", *LIMITS, "expires")


def hashed_key(name: str, secret: str, expires: float | None = None) -> HashedKey:
    """Return the key. Without a name, the key is named by the first characters of its digest."""
    digest = hashlib.sha256(secret.encode()).digest()
    return HashedKey(name or digest.hex()[:16], digest, expires)


def parse_key_file(content: bytes, path: str) -> KeyFile:
    """Return the keys of a file. Raises ConfigError with the line number if a line is invalid."""
    if len(content) > MAX_KEY_FILE_BYTES:
        raise ConfigError(f"api_key_file: {path} is larger than {MAX_KEY_FILE_BYTES} bytes: remove some keys")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"api_key_file: cannot read {path} as text; give a UTF-8 file") from error
    keys: dict[bytes, HashedKey] = {}
    given: dict[str, dict[str, str | float]] = {}  # values of options, by name
    for number, words in numbered_words(text):
        try:
            key, options = _parse_line(words)
            if key.digest in keys:
                raise ConfigError("the same key is on an earlier line: remove one of the two lines")
            keys[key.digest] = key
            _merge(given.setdefault(key.name, {}), options)
        except ConfigError as error:
            raise ConfigError(f"api_key_file: {path}, line {number}: {error}") from None
    if not keys:
        raise ConfigError(f"api_key_file: {path} has no key: write one key per line")
    names = {name: _name_options(options) for name, options in given.items()}
    return KeyFile(tuple(keys.values()), MappingProxyType(names))


def _parse_line(words: list[str]) -> tuple[HashedKey, dict[str, str | float]]:
    if _is_option(words[0]):
        raise ConfigError("the line begins with an option: write the key before its options")
    has_name = len(words) > 1 and not _is_option(words[1])
    if has_name and LIKE_AN_OPTION.fullmatch(words[1]):
        raise ConfigError(
            f"word 2 is neither an option ({', '.join(OPTIONS)}) nor a key:"
            " after a name, a key may contain '=' only at its end"
        )
    name, secret = (words[0], words[1]) if has_name else ("", words[0])
    if has_name and not NAME.fullmatch(name):
        raise ConfigError(
            f"the name (word 1) must have 1 to {MAX_NAME_CHARACTERS} letters, digits or characters of . _ @ -"
        )
    if not SECRET.fullmatch(secret):
        raise ConfigError(
            f"the key must have at least {MIN_KEY_CHARACTERS} characters, all of them printable ASCII:"
            " create one with `openssl rand -hex 32`"
        )
    first = 2 if has_name else 1
    options: dict[str, str | float] = {}
    for position, word in enumerate(words[first:], start=first + 1):
        if not _is_option(word):
            raise ConfigError(f"word {position} is not an option: use {', '.join(OPTIONS)}")
        option, _, value = word.partition("=")
        _merge(options, {option: _parse_value(option, value)})
    expires = options.pop("expires", None)
    assert not isinstance(expires, str)
    return hashed_key(name, secret, expires), options


def _is_option(word: str) -> bool:
    option, equals, _ = word.partition("=")
    return bool(equals) and option in OPTIONS


def _merge(options: dict[str, str | float], more: Mapping[str, str | float]) -> None:
    for option, value in more.items():
        if options.setdefault(option, value) != value:
            raise ConfigError(f"{option} is given twice for this name, with different values: remove one")


def _parse_value(option: str, value: str) -> str | float:
    if option == "role":
        if value not in tuple(KeyRole):
            raise ConfigError(f"role must be {' or '.join(KeyRole)}")
        return value
    if option == "expires":
        return _parse_time(value)
    if option == "weight":
        if (
            not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", value)
            or not WEIGHT[0] <= float(value) <= WEIGHT[1]
        ):
            raise ConfigError(f"weight must be a number from {WEIGHT[0]:g} to {WEIGHT[1]:g}")
        return float(value)
    if not re.fullmatch("[0-9]{1,13}", value) or not 1 <= int(value) <= MAX_LIMIT:
        raise ConfigError(f"{option} must be a whole number from 1 to {MAX_LIMIT}; omit it for no limit")
    return int(value)


def _parse_time(value: str) -> float:
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is not None:
            return time.timestamp()
    except (ValueError, OverflowError):
        pass
    raise ConfigError("expires must be a time with its time zone, such as 2026-12-01T00:00:00Z")


def _name_options(given: Mapping[str, str | float]) -> NameOptions:
    limits = {limit: int(given[limit]) for limit in LIMITS if limit in given}
    options = NameOptions(limits=KeyLimits(**limits))
    if "weight" in given:
        options = replace(options, weight=float(given["weight"]))
    if "role" in given:
        options = replace(options, role=KeyRole(str(given["role"])))
    return options
