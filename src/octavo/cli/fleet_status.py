"""`octavo fleet status`: list the replicas of a server."""

import argparse

from octavo.cli.invocation import Invocation
from octavo.config import counted
from octavo.status import ReplicaState

USAGE = "fleet status"
DESCRIPTION = """\
List the replicas of a server: their states, requests in flight, KV blocks in use, and the steps and tokens of
all their engines since the server started. Tokens/s are those of the time in steps. States: starting, ready,
suspected (it does not respond), draining (its requests move to other replicas), restarting, unreachable (no
connection to its machine), failed (no engine will be started there again)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from octavo.cli.fleet import add_server_flags

    add_server_flags(parser)


def run(call: Invocation) -> int:
    from octavo.cli.fleet import FleetClient, as_json, duration, fleet_table, is_open, named

    client, terminal = FleetClient.of(call), call.terminal
    fleet = client.status()
    if call.args.json:
        terminal.write(as_json(fleet))
        return 0
    terminal.write(
        f"{fleet.model} at {client.address}, octavo {fleet.version}, {fleet.fingerprint or 'loading'}\n"
    )
    terminal.write(fleet_table(fleet, terminal))
    unsent = f", {fleet.unsent:,} without a replica" if fleet.unsent else ""
    moves = counted(fleet.moves, "move")
    terminal.write(f"{counted(fleet.requests, 'request')} in flight{unsent}; {moves} since the start\n")
    for replica in fleet.replicas:
        if replica.problem is not None:
            is_away = replica.state is ReplicaState.UNREACHABLE
            reason = "unreachable" if is_away else "the last engine died"
            terminal.write(f"{replica.name}: {reason}: {replica.problem}\n")
    for operation in fleet.operations:
        if is_open(operation):
            since = "" if operation.seconds is None else f" for {duration(operation.seconds)}"
            terminal.write(f"{operation.state}{since}: {named(operation)}\n")
    if fleet.operations and fleet.operations[-1].problem is not None:
        terminal.write(f"failed: {named(fleet.operations[-1])}: {fleet.operations[-1].problem}\n")
    return 0
