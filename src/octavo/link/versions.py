"""Versions of the protocol between front end and engine, and what a message looks like in transit.

Both sides say their version when they connect (`Hello`, `Ready`), and a front end works with engines of this
version and the previous one. Structs ignore fields that they do not know.

version 1   `arrival` and `deadline` are times of a clock that both processes share. Outputs have neither
            `attempt` nor `position`: each attempt has a request id of its own instead.
version 2   a request carries durations instead of times, and outputs have `attempt` and `position`
"""

import msgspec

from octavo.protocol import Abort, EngineOutputs, GenerateRequest, TokenOutput

PROTOCOL_VERSION = 2
SEPARATOR = "~"  # between a request id and the attempt, in version 1


def departing(message: GenerateRequest | Abort, version: int, now: float) -> GenerateRequest | Abort:
    """Return a message as the front end sends it to an engine with this version."""
    if version < 2:
        return msgspec.structs.replace(message, request_id=_numbered(message.request_id, message.attempt))
    if isinstance(message, Abort):
        return message
    return msgspec.structs.replace(
        message,
        arrival=0.0,
        deadline=None,
        waited=now - message.arrival,
        seconds_left=None if message.deadline is None else message.deadline - now,
    )


def arrived(request: GenerateRequest, now: float) -> GenerateRequest:
    """Return a request that the engine has received, with times of its own clock."""
    if request.waited is None:  # from a front end with version 1
        return request
    return msgspec.structs.replace(
        request,
        arrival=now - request.waited,
        deadline=None if request.seconds_left is None else now + request.seconds_left,
        waited=None,
        seconds_left=None,
    )


def numbered_outputs(message: EngineOutputs, version: int) -> EngineOutputs:
    """Return the outputs of an engine with this version, with the numbers of their attempts."""
    if version >= 2:
        return message
    return msgspec.structs.replace(message, outputs=tuple(map(_with_attempt, message.outputs)))


def _numbered(request_id: str, attempt: int) -> str:
    return f"{request_id}{SEPARATOR}{attempt}"


def _with_attempt(output: TokenOutput) -> TokenOutput:
    request_id, _, attempt = output.request_id.rpartition(SEPARATOR)
    return msgspec.structs.replace(output, request_id=request_id, attempt=int(attempt))
