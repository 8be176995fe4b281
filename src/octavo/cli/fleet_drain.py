"""`octavo fleet drain`: move the requests of a replica to others, then restart or remove it."""

import argparse
from typing import TYPE_CHECKING

from octavo.cli.invocation import Invocation
from octavo.config import counted

if TYPE_CHECKING:
    from octavo.status import FleetStatus, OperationStatus

USAGE = "fleet drain REPLICA"
DESCRIPTION = """\
Move the requests of a replica to the others. Then end its engine and start a new one, or with --remove, none.
Streams pause while the next engine computes their tokens so far, and continue with the same tokens as without
the move. Drains of several replicas run one after the other."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from octavo.cli.fleet import add_server_flags, add_wait_flag

    parser.add_argument("replica", metavar="REPLICA", help="name of the replica, such as r1")
    parser.add_argument("--remove", action="store_true", help="start no new engine: the replica is removed")
    add_wait_flag(parser)
    add_server_flags(parser)


def run(call: Invocation) -> int:
    from octavo.cli.fleet import OperationProgress, run_command

    body = {"replica": call.args.replica, "then": "remove" if call.args.remove else "restart"}
    return run_command(call, "drain", body, OperationProgress(call.terminal, _progress, _result))


def _progress(fleet: "FleetStatus", operation: "OperationStatus") -> str:
    from octavo.cli.fleet import replica_of
    from octavo.status import ReplicaState

    name = operation.replica
    replica = replica_of(fleet, name)
    if replica is None:
        return f"{name}: its requests have moved, its engine is ending"
    if replica.requests:
        return f"{name}: {counted(replica.requests, 'request')} still to move"
    if replica.state in (ReplicaState.STARTING, ReplicaState.RESTARTING):
        return f"{name}: its old engine has ended, the new one is being loaded"
    return f"{name}: no requests, its engine is ending"


def _result(operation: "OperationStatus") -> str:
    ended = "was removed" if operation.then == "remove" else "has a new engine"
    return f"{operation.replica} {ended} ({operation.seconds:.1f} s)"
