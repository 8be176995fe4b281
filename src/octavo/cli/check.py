"""`octavo check`: does a server speak the API that OpenAI's clients expect?"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import octavo
from octavo.cli.bench_output import Column, GrowingTable
from octavo.cli.invocation import Invocation

if TYPE_CHECKING:
    from octavo.conformance.check import Result
    from octavo.conformance.target import Target

USAGE = "check URL"
DESCRIPTION = """\
Ask any server that claims OpenAI's API, ours or another, and say what it does otherwise.
Each row is a check. "not supported": the server refuses this and says so, or cannot show it: no fault.
The exit code is 1 if any check has failed."""

EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL", help="such as http://127.0.0.1:8000, with the path unless it is /v1"
    )
    # Names of their own: they are the other server's, not options of this one.
    parser.add_argument(
        "--api-key",
        metavar="K",
        dest="key_to_send",
        default=None,
        help="key to send, and to try going without",
    )
    parser.add_argument(
        "--model",
        metavar="M",
        dest="model_to_ask",
        default="",
        help="model to ask [the first that is listed]",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=float, default=60.0, help="seconds an answer may take [60]"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, default=None, help="write the results to FILE")
    parser.set_defaults(config=None)


def run(call: Invocation) -> int:
    from octavo.conformance.check import Outcome
    from octavo.conformance.suite import ALL_CHECKS, run_all, with_model
    from octavo.conformance.target import Target
    from octavo.conformance.transport import HttpTransport

    args = call.args
    transport = HttpTransport.to(args.url, args.timeout)
    target = with_model(Target(transport, args.model_to_ask, args.key_to_send))
    call.terminal.note(f"asking {transport.url} for {target.model}")
    columns = (
        Column("group", -max(len(check.group) for check in ALL_CHECKS)),
        Column("check", -max(len(check.name) for check in ALL_CHECKS)),
        Column("result", -max(map(len, Outcome))),
        Column("ms", 7),
        Column("what was wrong", -1),
    )
    table = GrowingTable(call.terminal, columns)
    results = []
    for result in run_all(target):
        results.append(result)
        cells = (result.check.group, result.check.name, result.outcome, f"{result.milliseconds:,.0f}")
        table.add((*cells, result.detail))
    counts = Counter(result.outcome for result in results)
    call.terminal.note(", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome))
    if args.json is not None:
        args.json.write_bytes(as_json(transport.url, target, results))
    return EXIT_FAILED if counts[Outcome.FAILED] else 0


def as_json(url: str, target: "Target", results: "Sequence[Result]") -> bytes:
    """The key is not in it."""
    content = {
        "octavo": octavo.__version__,
        "url": url,
        "model": target.model,
        "checks": [
            {
                "group": result.check.group,
                "check": result.check.name,
                "required": result.check.is_required,
                "result": result.outcome,
                "detail": result.detail,
                "milliseconds": round(result.milliseconds, 3),
            }
            for result in results
        ],
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
