"""`octavo replica`: one engine of a fleet, on a machine of its own."""

import argparse

from octavo.cli.flags import add_option_flags
from octavo.cli.invocation import Invocation
from octavo.cli.model import require_model
from octavo.config import EngineOptions, ReplicaOptions

USAGE = "replica MODEL"
DESCRIPTION = """\
Run one engine, and offer it to the front ends of a fleet (`octavo serve MODEL --fleet ...`), which may be on
other machines. Connections are encrypted, and both sides need a key (`octavo fleet keys`). After SIGTERM, the
front ends move the requests to other replicas; those that cannot move have --grace seconds to finish."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_argument", metavar="MODEL", nargs="?", help="model to load; same as --model")
    add_option_flags(parser, (ReplicaOptions, EngineOptions), ("fleet_key", "grace", "log_format"))
    parser.set_defaults(is_service=True)


def run(call: Invocation) -> int:
    require_model(call.options, "replica")
    from octavo.replica.agent import run_replica

    return run_replica(call.options, call.resolved.replica, call.resolved.server)
