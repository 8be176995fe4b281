"""`octavo fleet down`: end all replicas of a fleet on a Ray cluster."""

import argparse

from octavo.cli.invocation import Invocation

USAGE = "fleet down"
DESCRIPTION = """\
End all replicas that `octavo fleet up` has started on a Ray cluster. Their requests have --grace seconds, as
given to `octavo fleet up`, to finish. Front ends go on and wait for other replicas. Run this on a node of the
cluster."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from octavo.cli.fleet_ray import add_cluster_flags

    add_cluster_flags(parser)
    parser.set_defaults(config=None)


def run(call: Invocation) -> int:
    from octavo.membership.addresses import check_fleet_name
    from octavo.ray.cluster import RayFleet, connect

    name = check_fleet_name(call.args.name)
    fleet = RayFleet(connect(call.args.ray_address), name)
    call.terminal.message("the replicas finish their requests")
    fleet.end()
    call.terminal.write(f"the fleet {name} has ended\n")
    return 0
