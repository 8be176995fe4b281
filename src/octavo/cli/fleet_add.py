"""`octavo fleet add`: start one more replica."""

import argparse
from typing import TYPE_CHECKING

from octavo.cli.invocation import Invocation

if TYPE_CHECKING:
    from octavo.status import FleetStatus, OperationStatus

USAGE = "fleet add"
DESCRIPTION = """\
Start one more replica. It has as many KV blocks as the others, for which the free memory must suffice. The
cores are divided by the new number of replicas, for this engine and for those that are started later: restart
the others to divide the cores anew."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from octavo.cli.fleet import add_server_flags, add_wait_flag

    add_wait_flag(parser)
    add_server_flags(parser)


def run(call: Invocation) -> int:
    from octavo.cli.fleet import OperationProgress, run_command

    return run_command(call, "add", {}, OperationProgress(call.terminal, _progress, _result))


def _progress(fleet: "FleetStatus", operation: "OperationStatus") -> str:
    return f"{operation.replica}: its engine is being loaded"


def _result(operation: "OperationStatus") -> str:
    return f"{operation.replica} is ready ({operation.seconds:.1f} s)"
