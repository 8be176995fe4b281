"""`octavo fleet up`: start replicas on a Ray cluster, or change their number or options."""

import argparse
import os
import time
from typing import TYPE_CHECKING

from octavo.cli.flags import add_option_flags
from octavo.cli.invocation import Invocation
from octavo.cli.model import require_model
from octavo.cli.terminal import as_typed
from octavo.config import EngineOptions, flag_of, option_specs
from octavo.config.sizes import parse_size
from octavo.errors import ConfigError, FleetError

if TYPE_CHECKING:
    from octavo.ray.cluster import RayFleet
    from octavo.ray.spec import FleetSpec, RayFleetStatus

USAGE = "fleet up MODEL"
DESCRIPTION = """\
Start replicas on the nodes of a Ray cluster, and keep them running: a replica that ends is started again, and
one whose node is lost is started elsewhere. With --max, their number follows the time that requests wait. Run
it again to change the number or the options; replicas with other options are replaced one after the other.
Front ends find the replicas with `octavo serve MODEL --fleet ray:NAME`. Run this on a node of the cluster.
Octavo, the checkpoint and the key file must be at the same place on every node."""

POLL_SECONDS = 0.5
PATHS = ("model", "checkpoint_path", "tokenizer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from octavo.cli.fleet_ray import add_cluster_flags

    parser.add_argument("model_argument", metavar="MODEL", nargs="?", help="model to load; same as --model")
    add_cluster_flags(parser)
    group = parser.add_argument_group("replicas")
    group.add_argument("--replicas", metavar="N", type=int, default=1, help="number at the start [1]")
    group.add_argument("--min", metavar="N", type=int, default=None, help="minimum number [--replicas]")
    group.add_argument("--max", metavar="N", type=int, default=None, help="maximum number [--replicas]")
    group.add_argument(
        "--target-queue",
        metavar="S",
        type=float,
        default=2.0,
        help="with --max: seconds that a request may wait before there are more replicas [2]",
    )
    group.add_argument(
        "--scale-down-after",
        metavar="S",
        type=float,
        default=300.0,
        help="with --min: seconds without waiting requests before there is one replica fewer [300]",
    )
    group.add_argument(
        "--cpus-per-replica",
        metavar="N",
        type=int,
        default=None,
        help="CPUs that Ray reserves, and threads (none: all of the smallest node)",
    )
    group.add_argument(
        "--memory-per-replica",
        metavar="SIZE",
        default=None,
        help="memory that Ray reserves (none: no reservation)",
    )
    group.add_argument("--port", metavar="N", type=int, default=0, help="port of every replica; 0: any [0]")
    group.add_argument("--no-wait", action="store_true", help="do not wait until the replicas are ready")
    group.add_argument(
        "--allow-unauthenticated",
        action="store_true",
        help="accept a cluster without token authentication, where everybody can run commands",
    )
    add_option_flags(parser, (EngineOptions,), ("fleet_key", "grace"))


def run(call: Invocation) -> int:
    require_model(call.options, "fleet up")
    key_path = call.resolved.server.fleet_key
    if key_path is None:
        raise ConfigError(
            "no fleet key: create the keys with `octavo fleet keys FOLDER`, copy replica.key to every node,"
            " and give its path there with --fleet-key"
        )
    from octavo.cli.fleet_ray import replicas_table
    from octavo.membership.addresses import check_fleet_name
    from octavo.ray.cluster import RayFleet, check_authentication, connect, smallest_node_cpus

    name = check_fleet_name(call.args.name)
    _check_numbers(call.args)
    ray = connect(call.args.ray_address)
    if not call.args.allow_unauthenticated:
        check_authentication(ray.get_runtime_context().gcs_address)
    cpus = call.args.cpus_per_replica or smallest_node_cpus(ray)
    fleet = RayFleet(ray, name)
    spec = _spec(call, name, cpus)
    fleet.apply(spec, call.resolved.server.grace)
    if not call.args.no_wait:
        status = _wait_until_ready(call, fleet, spec)
        call.terminal.write(replicas_table(status) + "\n")
    call.terminal.write(
        f"start front ends on nodes of this cluster: octavo serve {call.options.model or 'MODEL'} --fleet"
        f" ray:{name} --fleet-key FOLDER/front-end.key\n"
    )
    return 0


def _check_numbers(args: argparse.Namespace) -> None:
    minimum, maximum = _limits(args)
    if not 1 <= minimum <= args.replicas <= maximum:
        raise ConfigError("give numbers with 1 <= --min <= --replicas <= --max")
    if not (args.target_queue > 0 and args.scale_down_after > 0):
        raise ConfigError("--target-queue and --scale-down-after must be more than 0 seconds")
    if not 0 <= args.port <= 65535 or (args.cpus_per_replica is not None and args.cpus_per_replica < 1):
        raise ConfigError("--port must be from 0 to 65535, and --cpus-per-replica at least 1")


def _limits(args: argparse.Namespace) -> tuple[int, int]:
    return (
        args.replicas if args.min is None else args.min,
        args.replicas if args.max is None else args.max,
    )


def _spec(call: Invocation, name: str, cpus: float) -> "FleetSpec":
    from octavo.fleet.scaling import ScalingRule
    from octavo.ray.spec import FleetSpec, ReplicaSpec

    args = call.args
    memory = 0 if args.memory_per_replica is None else parse_size(args.memory_per_replica)
    replica = ReplicaSpec(name, _arguments(call, cpus), cpus, memory, args.port)
    rule = ScalingRule(*_limits(args), args.target_queue, args.scale_down_after)
    return FleetSpec(replica, rule, args.replicas)


def _arguments(call: Invocation, cpus: float) -> tuple[str, ...]:
    """Return the arguments of `octavo replica` for the options that were given here."""
    server = call.resolved.server
    arguments = ["--fleet-key", os.path.abspath(str(server.fleet_key)), "--grace", as_typed(server.grace)]
    for spec in option_specs(EngineOptions):
        value = getattr(call.options, spec.name)
        if spec.name == "threads" and value is None:
            value = max(int(cpus), 1)
        elif not call.resolved.is_given(spec.name):
            continue
        if spec.name in PATHS and value is not None and os.path.exists(value):
            value = os.path.abspath(value)
        flag = flag_of(spec.name)
        if spec.is_switch:
            arguments.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            arguments += [flag, as_typed(value)]
    return tuple(arguments)


def _wait_until_ready(call: Invocation, fleet: "RayFleet", spec: "FleetSpec") -> "RayFleetStatus":
    from octavo.cli.fleet_ray import summary

    shown = ""
    while True:
        status = fleet.status()
        if status is not None and status.digest != spec.replica.digest:
            raise FleetError("another `octavo fleet up` has changed this fleet meanwhile")
        line = "waiting for the fleet's actor" if status is None else summary(status)
        if line != shown:
            call.terminal.message(line)
            shown = line
        if status is not None and status.num_ready == status.num_wanted == len(status.replicas):
            return status
        time.sleep(POLL_SECONDS)
