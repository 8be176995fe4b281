"""How the engine of a replica was lost."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    in_slots: frozenset[int] | None = None  # numbers of the requests that it was computing; None: not known
    is_hang: bool = False
    request_id: str = ""  # after a hang: the only request in the step; empty if there were several
    is_blameless: bool = False  # no request can be the cause
    is_shared: bool = False  # other front ends used it too, so the cause may be a request of theirs


NOBODYS_FAULT = Loss(is_blameless=True)
