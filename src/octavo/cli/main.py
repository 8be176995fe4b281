"""The `octavo` command: parse, dispatch, and turn errors into one clear line.

Nothing here, nor in the modules it imports, imports torch: `octavo --help` answers at once.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import octavo
from octavo.cli import chat, config_show, generate, inspect
from octavo.cli.flags import options_from
from octavo.cli.invocation import Invocation
from octavo.cli.model import OpenModel, open_llm
from octavo.cli.terminal import Terminal
from octavo.errors import ConfigError, OctavoError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None, *, open_model: OpenModel = open_llm) -> int:
    """Run one command; the result is the exit code."""
    terminal = Terminal.of_process(os.environ)
    args = build_parser().parse_args(argv)
    try:
        resolved = options_from(args, terminal)
        logging.basicConfig(format="octavo: %(message)s")
        quiet = getattr(args, "quiet", False)
        logging.getLogger("octavo").setLevel("ERROR" if quiet else resolved.options.log_level.upper())
        code: int = args.run(Invocation(args, resolved, terminal, open_model))
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
        # The reader is gone; without this, Python would complain when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="octavo", description="An exact, fast and readable LLM inference engine.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"octavo {octavo.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add(commands, "generate", "complete prompts", generate)
    _add(commands, "chat", "talk with a model", chat)
    _add(commands, "inspect", "describe a model and what fits this machine, without loading it", inspect)
    config = commands.add_parser("config", help="show options and where they come from", allow_abbrev=False)
    config_commands = config.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add(config_commands, "show", "print every option, its value and its origin", config_show)
    return parser


def _add(commands: Any, name: str, summary: str, module: Any) -> None:
    parser = commands.add_parser(
        name,
        help=summary,
        usage=f"octavo {module.USAGE} [options]",
        description=module.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser.set_defaults(run=module.run)


if __name__ == "__main__":
    sys.exit(main())
