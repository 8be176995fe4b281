"""The key file of one side of a fleet: the replicas have one, and the front ends have the other.

    # a comment
    secret 64 hex digits
    public 64 hex digits
    allow  64 hex digits  name (optional)

`allow` lists the public keys of the other side. A key without a name is named by its first digits.
Connections use CURVE, which is part of ZeroMQ: both sides prove that they have their secret, and messages are
encrypted. No error message contains a word of the file.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self

import zmq
from zmq.utils import z85

from octavo.config.lines import numbered_words
from octavo.errors import ConfigError

MAX_FILE_BYTES = 1 << 20
MAX_NAME_CHARACTERS = 64
KEY_HEX = re.compile("[0-9a-fA-F]{64}")
KEY_NAME = re.compile(rf"[A-Za-z0-9._@-]{{1,{MAX_NAME_CHARACTERS}}}")
# Listeners with a domain ask the authenticator of their context about every key.
ZAP_DOMAIN = "octavo-fleet"
ADVICE = "create the key files with `octavo fleet keys FOLDER`"

REPLICA_NAME = "replica"
FRONT_END_NAME = "front-end"


@dataclass(frozen=True)
class FleetKey:
    secret: bytes = field(repr=False)
    public: bytes
    allowed: Mapping[bytes, str]  # public keys of the other side, and their names

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the key in a file. Raises ConfigError if the file is missing, invalid, or not private."""
        return cls.parse(_read_private(path), path)

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Self:
        """Return the key in the content of a file. `path` is for error messages."""
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ConfigError(f"fleet key: {path} is not a text file: {ADVICE}") from None
        pair: dict[str, bytes] = {}
        allowed: dict[bytes, str] = {}
        for number, words in numbered_words(text):
            try:
                _parse_line(words, pair, allowed)
            except ConfigError as error:
                raise ConfigError(f"fleet key: {path}, line {number}: {error}") from None
        for kind in ("secret", "public"):
            if kind not in pair:
                raise ConfigError(f"fleet key: {path} has no line with `{kind}`: {ADVICE}")
        if public_of(pair["secret"]) != pair["public"]:
            raise ConfigError(
                f"fleet key: the public key in {path} does not belong to the secret key: {ADVICE}"
            )
        if not allowed:
            raise ConfigError(
                f"fleet key: {path} has no line with `allow`, so nothing could connect: add the public key of"
                " the other side, as in `allow 0123... name`"
            )
        return cls(pair["secret"], pair["public"], MappingProxyType(allowed))

    def text(self, comment: str) -> str:
        """Return the content of a file with this key."""
        allowed = (f"allow  {public.hex()}  {name}" for public, name in self.allowed.items())
        lines = (f"# {comment}", f"secret {self.secret.hex()}", f"public {self.public.hex()}", *allowed)
        return "\n".join(lines) + "\n"

    def protect_listener(self, socket: "zmq.Socket[bytes]") -> None:
        """Set the options of a socket that listens. Call this before `bind`.

        Without an authenticator in the socket's context, such as that of `Gate`, every connection fails:
        by default, libzmq would accept all keys.
        """
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def protect_connection(self, socket: "zmq.Socket[bytes]", peer_public: bytes) -> None:
        """Set the options of a socket that connects to listeners with this public key. Call this before
        `connect`."""
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SERVERKEY, peer_public)


def new_fleet_keys() -> tuple[FleetKey, FleetKey]:
    """Return a new key for the replicas and one for the front ends. Each allows the other."""
    (replica_secret, replica_public), (front_secret, front_public) = _new_pair(), _new_pair()
    return (
        FleetKey(replica_secret, replica_public, MappingProxyType({front_public: FRONT_END_NAME})),
        FleetKey(front_secret, front_public, MappingProxyType({replica_public: REPLICA_NAME})),
    )


def public_of(secret: bytes) -> bytes:
    """Return the public key of a secret key."""
    _require_curve()
    return z85.decode(zmq.curve_public(z85.encode(secret)))


def _new_pair() -> tuple[bytes, bytes]:
    """Return a new secret key and its public key."""
    _require_curve()
    public, secret = zmq.curve_keypair()
    return z85.decode(secret), z85.decode(public)


def _require_curve() -> None:
    if not zmq.has("curve"):
        raise ConfigError(
            "this build of pyzmq has no CURVE, which protects the connections of a fleet: install the wheel"
            " with `pip install --force-reinstall --only-binary :all: pyzmq`"
        )


def _read_private(path: Path) -> bytes:
    """Return the content of a file that other users cannot access."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_private(os.fstat(descriptor), path)
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(MAX_FILE_BYTES + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise ConfigError(f"fleet key: there is no file {path}: {ADVICE}, or give another path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "invalid path"
        raise ConfigError(f"fleet key: cannot read {path} ({reason}): give a readable file") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"fleet key: {path} is larger than {MAX_FILE_BYTES} bytes: {ADVICE}")
    return content


def _check_private(status: os.stat_result, path: Path) -> None:
    """Raise ConfigError if other users can access a file of this user.

    As in ssh, only the owner is responsible for the mode. A Kubernetes secret belongs to root, and the group
    of a container without root must be able to read it.
    """
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"fleet key: {path} is not a file: {ADVICE}")
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        raise ConfigError(
            f"fleet key: other users can access {path} (mode {stat.S_IMODE(status.st_mode):04o}):"
            f" run `chmod 600 {path}`, and replace the keys if another user may have read them"
        )


def _parse_line(words: list[str], pair: dict[str, bytes], allowed: dict[bytes, str]) -> None:
    kind = words[0]
    if kind not in ("secret", "public", "allow"):
        raise ConfigError("the line must begin with `secret`, `public` or `allow`")
    if len(words) < 2 or not KEY_HEX.fullmatch(words[1]):
        raise ConfigError(f"`{kind}` must be followed by a key of 64 hex digits")
    key, rest = bytes.fromhex(words[1]), words[2:]
    if kind != "allow":
        if rest:
            raise ConfigError(f"only the key may follow `{kind}`: remove the other words")
        if kind in pair:
            raise ConfigError(f"there is an earlier line with `{kind}`: remove one of the two lines")
        pair[kind] = key
        return
    if len(rest) > 1 or not all(map(KEY_NAME.fullmatch, rest)):
        raise ConfigError(
            "after the key, give no name or one word of at most"
            f" {MAX_NAME_CHARACTERS} letters, digits or characters of . _ @ -"
        )
    if key in allowed:
        raise ConfigError("an earlier line allows the same key: remove one of the two lines")
    allowed[key] = rest[0] if rest else key.hex()[:16]
