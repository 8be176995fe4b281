"""`octavo serve`: an OpenAI-compatible HTTP server."""

import argparse

from octavo.cli.flags import add_option_flags
from octavo.cli.invocation import Invocation
from octavo.cli.model import require_model
from octavo.config import EngineOptions, ServerOptions

USAGE = "serve MODEL"
DESCRIPTION = """\
Serve a model over HTTP with an OpenAI-compatible API. The port opens immediately; requests get 503 until the
model is loaded. After SIGTERM, in-flight requests have --grace seconds to finish."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_argument", metavar="MODEL", nargs="?", help="model to serve; same as --model")
    add_option_flags(parser, (ServerOptions, EngineOptions))
    parser.set_defaults(is_service=True)


def run(call: Invocation) -> int:
    require_model(call.options, "serve")
    from octavo.server.serve import serve

    return serve(call.options, call.resolved.server)
