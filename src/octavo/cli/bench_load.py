"""Flags, progress bar and parsing that `octavo bench serve` and `octavo bench sweep` share."""

import argparse
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.invocation import Invocation
from octavo.cli.terminal import Terminal
from octavo.config import nearest_name
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.serve import LoadTarget, Progress, Slo, Workload
    from octavo.bench.serve.load import Watch

DEFAULT_WORKLOAD = "conversation"
KEY_VARIABLE = "OPENAI_API_KEY"


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    # Separate `dest` names: these flags describe the target server and are not options of this process.
    group = parser.add_argument_group("target server")
    group.add_argument(
        "--model",
        metavar="M",
        dest="model_to_ask",
        default="",
        help="model to request [the first one that the server lists]",
    )
    group.add_argument(
        "--api-key", metavar="K", dest="key_to_send", default=None, help=f"API key to send [${KEY_VARIABLE}]"
    )
    group.add_argument(
        "--prompts",
        choices=["ids", "text", "chat"],
        default="ids",
        help="form of the prompts: token ids, which have exact lengths; text; or chat messages [ids]",
    )
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        default=None,
        help="checkpoint whose tokenizer makes the prompts, if the server has no /tokenize",
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="request answers of the full length, past the end-of-sequence token [true]",
    )
    group.add_argument(
        "--count-chunks",
        action="store_true",
        help="request a token count with each chunk: more accurate, but more work for the server",
    )
    group.add_argument(
        "--body", metavar="JSON", default="{}", help="additional fields of every request, as an object"
    )
    group.add_argument(
        "--timeout", metavar="S", type=float, default=600.0, help="maximum seconds per request [600]"
    )


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "workload",
        "LENGTH is a number (128), a range (16-1024), a mixture (0.75*1024+0.25*128) or conversation",
    )
    group.add_argument(
        "--workload",
        metavar="NAME",
        default=DEFAULT_WORKLOAD,
        help="conversation, baseline, continuous_batching, paged_attention, chunked_prefill, prefix_caching"
        f" or prefill; the other flags override its parts [{DEFAULT_WORKLOAD}]",
    )
    group.add_argument(
        "--prompt", metavar="LENGTH", default=None, help="prompt length in tokens [set by the workload]"
    )
    group.add_argument(
        "--output", metavar="LENGTH", default=None, help="answer length in tokens [set by the workload]"
    )
    group.add_argument(
        "--shared",
        metavar="N",
        type=int,
        default=None,
        help="length of the prefix that all prompts share, in tokens [set by the workload]",
    )
    group.add_argument(
        "--seed",
        metavar="N",
        dest="load_seed",
        type=int,
        default=None,
        help="seed of prompts and arrival times; a server may have cached the prompts of a reused seed"
        " [random]",
    )


def add_slo_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "service level objective (SLO)",
        "T is a time such as 200ms or 1.5s; goodput counts the requests that meet every objective",
    )
    group.add_argument("--slo-ttft", metavar="T", default=None, help="maximum time to first token")
    group.add_argument(
        "--slo-tpot",
        metavar="T",
        default=None,
        help="maximum time per output token, as the mean of a request",
    )
    group.add_argument(
        "--slo-itl", metavar="T", default=None, help="maximum time between tokens, as the p99 of a request"
    )
    group.add_argument("--slo-e2e", metavar="T", default=None, help="maximum time for a whole answer")


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("report")
    group.add_argument(
        "--json", metavar="FILE", type=Path, default=None, help="write all results to FILE as JSON"
    )
    group.add_argument(
        "--html", metavar="FILE", type=Path, default=None, help="write a page with plots to FILE"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="hide progress")
    parser.set_defaults(config=None)


def target_from(call: Invocation) -> "LoadTarget":
    from octavo.bench.serve import PromptStyle, find_target

    args = call.args
    return find_target(
        args.url,
        model=args.model_to_ask,
        api_key=args.key_to_send or call.terminal.environ.get(KEY_VARIABLE),
        style=PromptStyle(args.prompts),
        tokenizer=args.tokenizer,
        ignores_eos=args.ignore_eos,
        counts_chunks=args.count_chunks,
        more=_json_object(args.body),
    )


def workload_from(args: argparse.Namespace) -> "Workload":
    from octavo.bench.serve import WORKLOADS
    from octavo.bench.serve.lengths import CONVERSATION_OUTPUT, CONVERSATION_PROMPT, parse_lengths

    if args.workload not in WORKLOADS:
        raise ConfigError(
            f"unknown workload {args.workload!r}; choose from {', '.join(WORKLOADS)}"
            f"{nearest_name(args.workload, WORKLOADS)}"
        )
    if args.shared is not None and args.shared < 0:
        raise ConfigError("--shared must be a whole number of at least 0")
    return WORKLOADS[args.workload].scaled(
        prompt=None if args.prompt is None else parse_lengths(args.prompt, CONVERSATION_PROMPT),
        output=None if args.output is None else parse_lengths(args.output, CONVERSATION_OUTPUT),
        shared=args.shared,
    )


def slo_from(args: argparse.Namespace) -> "Slo":
    from octavo.bench.serve import Slo

    return Slo(
        **{
            name: _seconds(getattr(args, f"slo_{name}"), f"--slo-{name}")
            for name in ("ttft", "tpot", "itl", "e2e")
        }
    )


def check_files(args: argparse.Namespace) -> None:
    """Check that the report files can be written, before minutes of load and not after them."""
    for path in (args.json, args.html):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"cannot write {path}: the folder {path.parent} does not exist")


@contextmanager
def bar(terminal: Terminal, *, quiet: bool) -> "Iterator[Watch | None]":
    """Show a progress bar if stderr is a terminal; yield the function through which each load updates it."""
    if quiet or not terminal.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=0, unit="request", file=terminal.stderr, dynamic_ncols=True, leave=False) as shown:

        def watch(progress: "Progress") -> None:
            if progress.num_done == progress.num_requests:
                shown.reset()
                shown.clear()  # the next output starts on an empty line
                return
            shown.total = progress.num_requests
            shown.n = progress.num_done
            rate = progress.num_chunks / progress.seconds if progress.seconds else 0.0
            facts: dict[str, Any] = {
                "in flight": progress.num_sent - progress.num_done,
                "tokens/s": f"{rate:,.0f}",
            }
            if progress.num_failed:
                facts["failed"] = progress.num_failed
            shown.set_postfix(facts)

        yield watch


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}" if seconds < 10 else f"{1e3 * seconds:,.0f}"


def _json_object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ConfigError(
            f"--body {text!r} is not a JSON object; give one such as '{{\"cache_prompt\": false}}'"
        )
    return fields


def _seconds(text: str | None, flag: str) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d*\.?\d+)(ms|s)", text)
    if found is None:
        raise ConfigError(f"{flag} {text!r} is not a time; give one such as 200ms or 1.5s")
    return float(found[1]) * (1e-3 if found[2] == "ms" else 1.0)
