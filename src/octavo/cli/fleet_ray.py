"""What the `octavo fleet` commands for a Ray cluster share."""

import argparse

from octavo.cli.terminal import table
from octavo.config import counted
from octavo.ray.spec import PlacedReplica, RayFleetStatus

DEFAULT_NAME = "octavo"


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster")
    group.add_argument("--on", choices=["ray"], default="ray", help="what places the replicas [ray]")
    group.add_argument("--name", default=DEFAULT_NAME, help=f"name of the fleet [{DEFAULT_NAME}]")
    group.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        default=None,
        help="head of the cluster (none: $RAY_ADDRESS, or that of this machine's node)",
    )


def summary(status: RayFleetStatus) -> str:
    """Return one line that says how far a fleet is."""
    others = [one for one in status.replicas.values() if one is None or not one.is_ready]
    unplaced = len([one for one in others if one is None])
    problems = sorted({one.problem for one in others if one is not None and one.problem is not None})
    parts = [f"{status.num_ready} of {counted(status.num_wanted, 'replica')} ready"]
    if unplaced:
        parts.append(
            f"{unplaced} without a node: the cluster has no room for them yet, or their node is lost"
        )
    return "; ".join([*parts, *problems])


def replicas_table(status: RayFleetStatus) -> str:
    rows = [("replica", "address", "state", "node")]
    for slot, one in status.replicas.items():
        if one is None:
            rows.append((str(slot.number), "-", "not placed", "-"))
        else:
            name, address = ("-", "-") if one.report is None else (one.report.name, one.report.address)
            rows.append((name, address, _state(one), one.node_id[:8]))
    return table(rows)


def _state(placed: PlacedReplica) -> str:
    if placed.report is None:
        return placed.problem or "starting"
    if placed.report.is_draining or placed.is_ending:
        return "draining"
    return "ready" if placed.report.is_ready else "starting"
