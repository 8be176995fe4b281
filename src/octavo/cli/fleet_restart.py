"""`octavo fleet restart`: restart all replicas of a server, one after the other."""

import argparse
from typing import TYPE_CHECKING

from octavo.cli.invocation import Invocation
from octavo.config import counted

if TYPE_CHECKING:
    from octavo.status import FleetStatus, OperationStatus

USAGE = "fleet restart"
DESCRIPTION = """\
Drain every replica and start a new engine there, one replica after the other. The others compute all requests
meanwhile. If a new engine does not become ready, the command ends with an error and leaves the rest alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from octavo.cli.fleet import add_server_flags, add_wait_flag

    add_wait_flag(parser)
    add_server_flags(parser)


def run(call: Invocation) -> int:
    from octavo.cli.fleet import OperationProgress, run_command

    return run_command(call, "restart", {}, OperationProgress(call.terminal, _progress, _result))


def _progress(fleet: "FleetStatus", operation: "OperationStatus") -> str:
    from octavo.status import ReplicaState

    done = f"{len(operation.restarted)} of {counted(len(fleet.replicas), 'replica')} restarted"
    for replica in fleet.replicas:
        if replica.state is ReplicaState.DRAINING and replica.requests:
            return f"{done}; {replica.name}: {counted(replica.requests, 'request')} still to move"
        if replica.state is not ReplicaState.READY:
            return f"{done}; {replica.name}: {replica.state}"
    return done


def _result(operation: "OperationStatus") -> str:
    replicas = counted(len(operation.restarted), "replica")
    return f"{replicas} restarted: {', '.join(operation.restarted)} ({operation.seconds:.1f} s)"
