"""What a response has besides its content: id, time and seed. Equal identities give equal responses."""

import hashlib
import secrets
import time
from dataclasses import dataclass
from itertools import count

SUFFIX_BYTES = 15  # of a response id, after its prefix
SEED_BYTES = 8
SEED_BITS = 63


@dataclass(frozen=True)
class ResponseIdentity:
    suffix: bytes  # of the response id
    created: int  # seconds since 1970
    seed: int  # for a request that has none

    def response_id(self, prefix: str) -> str:
        return prefix + self.suffix.hex()


class Identities:
    """Creates identities whose ids are unique and cannot be guessed. Owned by the event loop."""

    def __init__(self) -> None:
        self._run = secrets.token_bytes(6)  # makes ids of different runs differ
        self._numbers = count()

    def new(self) -> ResponseIdentity:
        number = (next(self._numbers) % (1 << 24)).to_bytes(3, "big")
        suffix = self._run + number + secrets.token_bytes(SUFFIX_BYTES - 9)
        return ResponseIdentity(suffix, int(time.time()), secrets.randbits(SEED_BITS))


def identity_of_key(binding: bytes, idempotency_key: str, body_digest: bytes) -> ResponseIdentity:
    """Return the identity of requests with an idempotency key.

    It depends only on API key, idempotency key and body, apart from the time. So every server gives the same
    answer, also one that does not know, or no longer knows, the first request.
    """
    named = hashlib.blake2b(body_digest, key=binding, person=b"octavo once")
    named.update(idempotency_key.encode())
    digest = named.digest()
    return ResponseIdentity(digest[:SUFFIX_BYTES], int(time.time()), _seed(digest[SUFFIX_BYTES:]))


def prompt_seed(seed: int, index: int) -> int:
    """Return the seed of one prompt of a request without a seed. Equal prompts get different answers."""
    if index == 0:
        return seed
    return _seed(hashlib.blake2b(b"%d/%d" % (seed, index), person=b"octavo prompt").digest())


def _seed(digest: bytes) -> int:
    return int.from_bytes(digest[:SEED_BYTES], "big") >> (8 * SEED_BYTES - SEED_BITS)
