"""Ids of the events of a stream. A client that sends the last id it received gets the events after it.

An id says how far the stream has come: the tokens of each choice so far. Answers are reproducible, so any
server with the same model can compute the stream again and leave out what the client has. Nothing is stored.

    head: version, response id, created, seed, digests of the request and of what determines the answer
    tail: for each choice, its tokens and cached tokens so far and whether it has finished; a MAC of all of it

Tokens, not events, are counted, because the number of tokens in an event may differ between two computations.
The key of the MAC is derived from the API key: an id is valid only with the key that it was sent to.
"""

import binascii
import hashlib
import hmac
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import StreamDelta
from octavo.server.http.errors import ApiError, invalid
from octavo.server.identity import SUFFIX_BYTES, ResponseIdentity

VERSION = 1
TAG_BYTES = 8
MAC_BYTES = 12
MAX_CHOICES = 16  # of a stream with ids, so that ids stay short
MAX_ID = 512  # characters
MAX_VARINT = 5  # bytes: more than any number of tokens needs
# Its length is a multiple of 3, so that it is encoded once, apart from the tail.
HEAD = struct.Struct(f">H{SUFFIX_BYTES}sIQ{TAG_BYTES}s{TAG_BYTES}s")
ENDED, NOT_ENDED = b"\1", b"\0"


class ChoicePosition(msgspec.Struct, frozen=True):
    """What a client has received of one choice."""

    num_tokens: int = 0
    is_finished: bool = False
    num_cached: int = 0  # cached tokens that were reported with the tokens

    def encoded(self) -> bytes:
        return _varint(2 * self.num_tokens + self.is_finished) + _varint(self.num_cached)


@dataclass(frozen=True)
class StreamPosition:
    """What a client has received of a stream, and which stream it is."""

    identity: ResponseIdentity
    body_tag: bytes  # of the request as the client sent it
    answer_tag: bytes  # of all that determines the answer: see `answer_tag`
    choices: tuple[ChoicePosition, ...]
    is_ended: bool  # the event after the choices was received too


@dataclass(frozen=True)
class StreamOrigin:
    """What the ids of a stream need to know about its request."""

    binding: bytes  # of the API key
    identity: ResponseIdentity
    body_tag: bytes
    resumed: StreamPosition | None = None  # what the client already has


class EventIds:
    """The ids of one stream. Owned by the stream."""

    def __init__(self, origin: StreamOrigin, tag: bytes, num_choices: int) -> None:
        """`tag` is that of `answer_tag`. Events that the client already has are left out."""
        identity = origin.identity
        head = HEAD.pack(VERSION, identity.suffix, identity.created, identity.seed, origin.body_tag, tag)
        self._resumed = origin.resumed
        self._line_start = b"id: " + binascii.b2a_base64(head, newline=False)
        self._mac = hashlib.blake2b(head, key=origin.binding, digest_size=MAC_BYTES)
        self._num_tokens = [0] * num_choices  # computed, of which the client may have received some
        received = (ChoicePosition(),) * num_choices if origin.resumed is None else origin.resumed.choices
        self._encoded = [position.encoded() for position in received]  # what the client has after an event

    def mark(self, choice: int, delta: StreamDelta, event: bytes) -> bytes:
        """Return the event of a delta with its id, or nothing if the client has it or the event is empty.

        Must be called for every delta: tokens without an event belong to the next event of their choice.
        """
        self._num_tokens[choice] += len(delta.token_ids)
        if not event:
            return b""
        position = ChoicePosition(self._num_tokens[choice], delta.finish_reason is not None, delta.num_cached)
        if self._resumed is not None and _covers(self._resumed.choices[choice], position):
            return b""
        self._encoded[choice] = position.encoded()
        return self._line(NOT_ENDED) + event

    def mark_end(self, event: bytes) -> bytes:
        """Return the event after the last one of all choices with its id."""
        has_event = self._resumed is not None and self._resumed.is_ended
        return self._line(ENDED) + event if event and not has_event else b""

    def _line(self, end: bytes) -> bytes:
        tail = end + b"".join(self._encoded)
        mac = self._mac.copy()
        mac.update(tail)
        return self._line_start + binascii.b2a_base64(tail + mac.digest())  # with a newline


def resumed_stream(text: str, binding: bytes, tag: bytes, *, param: str) -> StreamOrigin:
    """Return the origin of a stream that continues after the event with this id.

    Raises 400 if no server has sent the id to this API key, and 409 if the request has another body.
    """
    resumed = _parse(text, binding, param)
    if tag != resumed.body_tag:
        raise _conflict(
            "belongs to another request: send the body of the first request again unchanged, with the same"
            " seed if it had one"
        )
    return StreamOrigin(binding, resumed.identity, tag, resumed)


def make_event_ids(
    origin: StreamOrigin, fingerprint: str, model_name: str, prepared: Sequence[PreparedRequest]
) -> EventIds:
    """Return the ids of a stream. Raises 409 if its answer is not the one that the client has a part of, and
    400 if the id has another number of choices."""
    num_choices = sum(len(one.messages) for one in prepared)
    if num_choices > MAX_CHOICES:
        raise invalid(
            f"a stream with event ids may have {MAX_CHOICES} choices, and this one has {num_choices}: send"
            " several requests, or set stream_options.include_event_ids to false",
            "stream_options.include_event_ids",
        )
    tag = answer_tag(fingerprint, model_name, prepared)
    if origin.resumed is not None and tag != origin.resumed.answer_tag:
        raise _conflict(
            "belongs to a stream of another model: this server does not give the same answer. Send the"
            " request without the id to start again"
        )
    if origin.resumed is not None and len(origin.resumed.choices) != num_choices:
        raise _invalid("resume_from")  # forged: on a server without keys, the key of the MAC is public
    return EventIds(origin, tag, num_choices)


def _parse(text: str, binding: bytes, param: str) -> StreamPosition:
    if len(text) > MAX_ID:  # a header may be larger
        raise _invalid(param)
    try:
        content = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise _invalid(param) from None
    head, tail, mac = content[: HEAD.size], content[HEAD.size : -MAC_BYTES], content[-MAC_BYTES:]
    expected = hashlib.blake2b(head + tail, key=binding, digest_size=MAC_BYTES).digest()
    if len(content) < HEAD.size + 1 + MAC_BYTES or not hmac.compare_digest(mac, expected):
        raise _invalid(param)
    version, suffix, created, seed, body_tag, tag = HEAD.unpack(head)
    try:
        numbers = list(_integers(tail[1:]))
    except IndexError:
        raise _invalid(param) from None
    if version != VERSION or len(numbers) % 2 or len(numbers) > 2 * MAX_CHOICES:
        raise _invalid(param)
    choices = tuple(
        ChoicePosition(tokens >> 1, bool(tokens & 1), cached)
        for tokens, cached in zip(numbers[::2], numbers[1::2], strict=True)
    )
    identity = ResponseIdentity(suffix, created, seed)
    return StreamPosition(identity, body_tag, tag, choices, is_ended=tail[:1] == ENDED)


def body_tag(body_digest: bytes) -> bytes:
    return body_digest[:TAG_BYTES]


def answer_tag(fingerprint: str, model_name: str, prepared: Sequence[PreparedRequest]) -> bytes:
    """Return a digest of all that determines the answer."""
    digest = hashlib.blake2b(msgspec.json.encode((fingerprint, model_name)), digest_size=TAG_BYTES)
    for one in prepared:
        digest.update(msgspec.json.encode((one.params, one.messages[0].stop_ids, len(one.prompt_ids))))
        digest.update(array("q", one.prompt_ids).tobytes())
    return digest.digest()


def _covers(received: ChoicePosition, position: ChoicePosition) -> bool:
    return position.num_tokens <= received.num_tokens and position.is_finished <= received.is_finished


def _varint(number: int) -> bytes:
    """Return 7 bits per byte, the lowest first; the highest bit says that another byte follows."""
    if number < 0x80:
        return number.to_bytes()
    return (number & 0x7F | 0x80).to_bytes() + _varint(number >> 7)


def _integers(content: bytes) -> Iterator[int]:
    """Yield the numbers of concatenated varints. Raises IndexError if one is incomplete or too long."""
    position = 0
    while position < len(content):
        encoded = content[position : position + MAX_VARINT]
        number = size = 0
        while encoded[size] & 0x80:
            number |= (encoded[size] & 0x7F) << 7 * size
            size += 1
        yield number | encoded[size] << 7 * size
        position += size + 1


def _invalid(param: str) -> ApiError:
    return ApiError(
        400,
        f"{param} is not the id of an event that was sent to this API key: send the last id that you received"
        " unchanged and with the same key, or start again without it",
        param=param,
        code="invalid_event_id",
    )


def _conflict(reason: str) -> ApiError:
    return ApiError(409, f"the event id {reason}", param="resume_from", code="resume_conflict")
