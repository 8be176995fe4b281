"""Which requests leave a replica that is drained, some at a time.

    the replica          o o o o o o o       its engine computes these as before
    moved             x x                    another engine computes their tokens again: they pause
    continued     o o                        they need no attention any more

The next ones move when one of those that have moved continues. So a request pauses for its own tokens and
those of a few others, and the other engines always have a request to go on with.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from octavo.fleet.cost import typical_speed
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.replica_link import ReplicaLink

MIN_MOVING = 2  # requests of any length, for each other replica: while it computes one, the next is there
_num_replay_tokens = attrgetter("num_replay_tokens")


def next_to_move(
    requests: Iterable[InFlightRequest],
    moved: Sequence[InFlightRequest],
    others: Sequence[ReplicaLink],
    seconds: float,
) -> list[InFlightRequest]:
    """Return the shortest of the `requests` of a replica, as many as may move to the `others` now.

    Together with those that have `moved` and not continued they have at most the tokens that the others
    compute in `seconds`, or MIN_MOVING requests for each of the others if those have more tokens.
    """
    if not others:
        return []
    typical = typical_speed(others).seconds_per_prompt_token
    left = sum(seconds / (other.seconds_per_prompt_token or typical) for other in others)
    left -= sum(map(_num_replay_tokens, moved))
    num_free = MIN_MOVING * len(others) - len(moved)
    moving: list[InFlightRequest] = []
    for request in sorted(requests, key=_num_replay_tokens):
        left -= request.num_replay_tokens
        if left < 0 and len(moving) >= num_free:
            break
        moving.append(request)
    return moving
