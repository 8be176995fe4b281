"""What an agent reports to the process that supervises it: `REPORT_VARIABLE` of the sd_notify protocol."""

import msgspec

from octavo.errors import OctavoError

REPORT_VARIABLE = "X_OCTAVO_REPLICA"
REPORT_SECONDS = 1.0  # between two reports


class InvalidReport(OctavoError):
    """A notification that is not a report."""


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a replica. It has no part of any request."""

    name: str
    address: str  # where it listens
    is_ready: bool  # its engine is
    is_draining: bool
    queue_seconds: float  # that a new request would wait until an engine of the fleet begins with it
    num_sequences: int  # of all front ends, on all replicas
    max_running: int  # sequences that the engine computes at a time

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def parse_report(notification: bytes) -> ReplicaReport | None:
    """Return the report in a notification; None if it has none. Raises InvalidReport."""
    for line in notification.split(b"\n"):
        name, _, value = line.partition(b"=")
        if name == REPORT_VARIABLE.encode():
            try:
                return msgspec.json.decode(value, type=ReplicaReport)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InvalidReport(f"the agent has sent an invalid report: {error}") from error
    return None
