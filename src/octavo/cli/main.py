"""The `octavo` command: parse arguments, run a subcommand, and print errors as one line.

A subcommand's module is imported only when it is named, and none imports torch before it needs a model, so
`octavo --help` is fast.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import octavo
from octavo.cli.terminal import LogTerminal, Terminal
from octavo.errors import ConfigError, OctavoError

if TYPE_CHECKING:
    from octavo.cli.model import OpenModel

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as in shells
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None, *, open_model: "OpenModel | None" = None) -> int:
    """Run one command and return its exit code."""
    terminal = Terminal.of_process(os.environ)
    args = build_parser().parse_args(argv)
    from octavo.cli.flags import options_from, wants_json_logs
    from octavo.cli.invocation import Invocation
    from octavo.cli.model import open_llm

    if wants_json_logs(args, terminal.environ):
        from octavo.observe.logs import configure_logs

        configure_logs("json", "octavo")
        terminal = LogTerminal(terminal.stdin, terminal.stdout, terminal.stderr, terminal.environ)
    try:
        resolved = options_from(args, terminal)
        logging.basicConfig(format="octavo: %(message)s")
        quiet = getattr(args, "quiet", False)
        logging.getLogger("octavo").setLevel("ERROR" if quiet else resolved.options.log_level.upper())
        code: int = args.run(Invocation(args, resolved, terminal, open_model or open_llm))
        terminal.stdout.flush()
        return code
    except OctavoError as error:
        if args.debug:
            raise
        terminal.error(str(error))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe. Without this, Python prints an error when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


class CommandParser(argparse.ArgumentParser):
    """The parser of one command. It imports the command's module and adds its arguments on first use. A
    parser without a module is a group of commands."""

    def __init__(self, *, module: str = "", **settings: Any) -> None:
        super().__init__(**settings, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        self._module = module

    def parse_known_args(self, *arguments: Any, **keywords: Any) -> Any:
        if self._module and self.get_default("run") is None:
            command: Any = import_module(f"octavo.cli.{self._module}")
            self.usage = f"octavo {command.USAGE} [options]"
            self.description = command.DESCRIPTION
            command.add_arguments(self)
            self.add_argument("--debug", action="store_true", help="show a traceback for errors")
            self.set_defaults(run=command.run)
        return super().parse_known_args(*arguments, **keywords)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="octavo",
        description="LLM inference engine and OpenAI-compatible server with reproducible answers.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"octavo {octavo.__version__}")
    commands = _commands_of(parser)
    commands.add_parser("generate", help="complete prompts", module="generate")
    commands.add_parser("chat", help="chat with a model", module="chat")
    commands.add_parser("serve", help="serve a model over HTTP with an OpenAI-compatible API", module="serve")
    commands.add_parser(
        "replica", help="run one engine of a fleet, for front ends on other machines", module="replica"
    )
    commands.add_parser("top", help="monitor a server in the terminal", module="top")
    fleet = _commands_of(
        commands.add_parser("fleet", help="list, drain, add and restart a server's replicas")
    )
    fleet.add_parser("status", help="list the replicas of a server", module="fleet_status")
    fleet.add_parser(
        "drain",
        help="move the requests of a replica to others, then restart or remove it",
        module="fleet_drain",
    )
    fleet.add_parser("add", help="start one more replica", module="fleet_add")
    fleet.add_parser("restart", help="restart all replicas, one after the other", module="fleet_restart")
    fleet.add_parser("up", help="start replicas on a Ray cluster, or change them", module="fleet_up")
    fleet.add_parser("down", help="end the replicas on a Ray cluster", module="fleet_down")
    fleet.add_parser("keys", help="create the key files of a fleet across machines", module="fleet_keys")
    commands.add_parser("check", help="test a server for OpenAI compatibility", module="check")
    commands.add_parser(
        "inspect", help="describe a model and its memory needs, without loading it", module="inspect"
    )
    commands.add_parser("quantize", help="write a quantised copy of a model", module="quantize")
    bench = _commands_of(commands.add_parser("bench", help="benchmark servers, models and kernels"))
    bench.add_parser("serve", help="measure an OpenAI-compatible server under load", module="bench_serve")
    bench.add_parser("sweep", help="find the highest load that a server sustains", module="bench_sweep")
    bench.add_parser(
        "kernels", help="compare native kernels with the limits of this machine", module="bench_kernels"
    )
    bench.add_parser("step", help="compare engine steps with the limits of this machine", module="bench_step")
    config = commands.add_parser("config", help="show options and where their values come from")
    _commands_of(config).add_parser(
        "show", help="print every option, its value and its origin", module="config_show"
    )
    return parser


def _commands_of(parser: argparse.ArgumentParser) -> Any:
    return parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=CommandParser
    )


if __name__ == "__main__":
    sys.exit(main())
