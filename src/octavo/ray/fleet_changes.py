"""Which replicas of a fleet on Ray are started and ended next. Does not use Ray."""

from dataclasses import dataclass

from octavo.ray.spec import PlacedReplica, RayFleetStatus, ReplicaSlot


@dataclass(frozen=True)
class Changes:
    start: tuple[ReplicaSlot, ...] = ()
    end: tuple[ReplicaSlot, ...] = ()


def changes_of(status: RayFleetStatus, ending: frozenset[ReplicaSlot], *, is_ending: bool) -> Changes:
    """Return the next step towards the wanted state. `ending` are slots that were asked to end by now;
    `is_ending`: the whole fleet is.

    Replicas with other options than wanted are replaced: those that are not ready at once, since nobody
    misses them, and a ready one when all others are ready.
    """
    replicas = status.replicas
    # Asked by an earlier actor of the fleet, whose call is lost.
    forgotten = [s for s, one in replicas.items() if one is not None and one.is_ending and s not in ending]
    staying = [slot for slot in replicas if slot not in ending and slot not in forgotten]
    if is_ending:
        return Changes(end=(*forgotten, *staying))
    num_surplus = max(0, len(staying) - status.num_wanted)
    # Those that are missed least come first.
    by_worth = sorted(staying, key=lambda slot: (_worth(slot, replicas[slot], status), -slot.number))
    surplus = by_worth[:num_surplus]
    kept = [slot for slot in staying if slot not in surplus]
    outdated = [slot for slot in kept if slot.digest != status.digest]
    useless = [slot for slot in outdated if not _is_ready(replicas[slot])]
    is_settled = len(kept) == status.num_wanted and len(staying) == len(replicas) and not surplus
    if not useless and is_settled and all(_is_ready(replicas[slot]) for slot in kept):
        useless = outdated[:1]
    num_missing = (
        status.num_wanted - len(kept) + len([slot for slot in useless if not _is_ready(replicas[slot])])
    )
    return Changes(_free_slots(status, num_missing), (*forgotten, *surplus, *useless))


def _free_slots(status: RayFleetStatus, count: int) -> tuple[ReplicaSlot, ...]:
    slots = (ReplicaSlot(status.digest, number) for number in range(len(status.replicas) + max(count, 0)))
    free = [slot for slot in slots if slot not in status.replicas]
    return tuple(free[: max(count, 0)])


def _worth(slot: ReplicaSlot, one: PlacedReplica | None, status: RayFleetStatus) -> tuple[bool, bool, bool]:
    return _is_ready(one), slot.digest == status.digest, one is not None


def _is_ready(one: PlacedReplica | None) -> bool:
    return one is not None and one.is_ready
