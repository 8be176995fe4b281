"""`octavo check`: test whether a server implements the API that OpenAI's clients expect."""

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
    from octavo.conformance.check import CheckResult
    from octavo.conformance.target import CheckTarget

USAGE = "check URL"
DESCRIPTION = """\
Test any OpenAI-compatible server and report where it differs from OpenAI's API. Each row is one check.
"not supported" is not a failure: the server rejects the feature with an error, or the check does not apply.
The exit code is 1 if a check failed."""

EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        help="server address, such as http://127.0.0.1:8000; include the path unless it is /v1",
    )
    # Separate `dest` names: these flags describe the target server and are not options of this process.
    parser.add_argument(
        "--api-key",
        metavar="K",
        dest="key_to_send",
        default=None,
        help="API key to send; requests without it must then be rejected",
    )
    parser.add_argument(
        "--model",
        metavar="M",
        dest="model_to_ask",
        default="",
        help="model to request [the first one that the server lists]",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=float, default=60.0, help="maximum seconds per request [60]"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, default=None, help="write the results to FILE")
    parser.set_defaults(config=None)


def run(call: Invocation) -> int:
    from octavo.conformance.check import CheckOutcome
    from octavo.conformance.suite import ALL_CHECKS, run_all, with_model
    from octavo.conformance.target import CheckTarget
    from octavo.conformance.transport import HttpTransport

    args = call.args
    transport = HttpTransport.to(args.url, args.timeout)
    target = with_model(CheckTarget(transport, args.model_to_ask, args.key_to_send))
    call.terminal.note(f"checking {transport.url} with {target.model}")
    columns = (
        Column("group", -max(len(check.group) for check in ALL_CHECKS)),
        Column("check", -max(len(check.name) for check in ALL_CHECKS)),
        Column("result", -max(map(len, CheckOutcome))),
        Column("ms", 7),
        Column("problem", -1),
    )
    table = GrowingTable(call.terminal, columns)
    results = []
    for result in run_all(target):
        results.append(result)
        cells = (result.check.group, result.check.name, result.outcome, f"{result.milliseconds:,.0f}")
        table.add((*cells, result.detail))
    counts = Counter(result.outcome for result in results)
    call.terminal.note(", ".join(f"{counts[outcome]} {outcome}" for outcome in CheckOutcome))
    if args.json is not None:
        args.json.write_bytes(as_json(transport.url, target, results))
    return EXIT_FAILED if counts[CheckOutcome.FAILED] else 0


def as_json(url: str, target: "CheckTarget", results: "Sequence[CheckResult]") -> bytes:
    """Return the results as JSON, without the API key."""
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
