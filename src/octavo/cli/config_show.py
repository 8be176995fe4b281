"""`octavo config show`: print every option, its value, and where the value came from."""

import argparse

import msgspec

from octavo.cli.flags import add_option_flags
from octavo.cli.invocation import Invocation
from octavo.cli.terminal import as_typed, table
from octavo.config import EngineOptions, ReplicaOptions, ServerOptions

USAGE = "config show"
DESCRIPTION = """\
Print every option with its value and where the value came from.
Flags override OCTAVO_* variables, which override the YAML file, which overrides the defaults."""

HIDDEN = "(hidden)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_option_flags(parser, (EngineOptions, ServerOptions, ReplicaOptions))


def run(call: Invocation) -> int:
    origins = call.resolved.origins
    resolved = call.resolved
    values = call.options.model_dump() | resolved.server.model_dump() | resolved.replica.model_dump()
    if values["api_key"] is not None:
        values["api_key"] = HIDDEN
    if call.args.json:
        shown = {name: {"value": value, "origin": str(origins[name])} for name, value in values.items()}
        call.terminal.write(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode() + "\n")
        return 0
    rows = [(name, as_typed(value), str(origins[name])) for name, value in values.items()]
    call.terminal.write(table([("option", "value", "origin"), *rows]) + "\n")
    return 0
