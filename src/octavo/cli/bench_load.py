"""What `octavo bench serve` and `sweep` share: their flags, a bar while they run, their files."""

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
    from octavo.bench.serve import Progress, Slo, Target, Workload
    from octavo.bench.serve.load import Watch

DEFAULT_WORKLOAD = "conversation"
KEY_VARIABLE = "OPENAI_API_KEY"


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    # Names of their own: they are the other server's, not options of this one.
    group = parser.add_argument_group("the server")
    group.add_argument(
        "--model",
        metavar="M",
        dest="model_to_ask",
        default="",
        help="model to ask [the first that is listed]",
    )
    group.add_argument(
        "--api-key", metavar="K", dest="key_to_send", default=None, help=f"key to send [${KEY_VARIABLE}]"
    )
    group.add_argument(
        "--prompts",
        choices=["ids", "text", "chat"],
        default="ids",
        help="what is sent: token ids, which are exact; text; or chat messages [ids]",
    )
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        default=None,
        help="whose tokens prompts are made of, if the server has no /tokenize: a checkpoint",
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for answers of the full length [true]",
    )
    group.add_argument(
        "--count-chunks",
        action="store_true",
        help="ask for the number of tokens with each chunk: more exact, and more work for the server",
    )
    group.add_argument(
        "--body", metavar="JSON", default="{}", help="further fields of every request, as an object"
    )
    group.add_argument(
        "--timeout", metavar="S", type=float, default=600.0, help="seconds an answer may take [600]"
    )


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "the workload", "a length is 128, 16-1024, 0.75*1024+0.25*128 or conversation"
    )
    group.add_argument(
        "--workload",
        metavar="NAME",
        default=DEFAULT_WORKLOAD,
        help="conversation, baseline, continuous_batching, paged_attention, chunked_prefill, prefix_caching"
        f" or prefill; the other flags change it [{DEFAULT_WORKLOAD}]",
    )
    group.add_argument("--prompt", metavar="LENGTH", default=None, help="tokens of prompts")
    group.add_argument("--output", metavar="LENGTH", default=None, help="tokens of answers")
    group.add_argument(
        "--shared", metavar="N", type=int, default=None, help="tokens that all prompts begin with"
    )
    group.add_argument(
        "--seed",
        metavar="N",
        dest="load_seed",
        type=int,
        default=None,
        help="the same prompts and times again; a cache may know them then [a new one]",
    )


def add_slo_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "what is good", "times are 200ms or 1.5s; goodput counts requests that keep all"
    )
    group.add_argument("--slo-ttft", metavar="T", default=None, help="time to first token")
    group.add_argument(
        "--slo-tpot", metavar="T", default=None, help="time per output token, the request's mean"
    )
    group.add_argument("--slo-itl", metavar="T", default=None, help="time between tokens, the request's p99")
    group.add_argument("--slo-e2e", metavar="T", default=None, help="the whole answer")


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the report")
    group.add_argument("--json", metavar="FILE", type=Path, default=None, help="everything, for programs")
    group.add_argument(
        "--html", metavar="FILE", type=Path, default=None, help="one page with plots, for people"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(config=None)


def target_from(call: Invocation) -> "Target":
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
            f"there is no workload {args.workload!r}{nearest_name(args.workload, WORKLOADS)}; there are"
            f" {', '.join(WORKLOADS)}"
        )
    if args.shared is not None and args.shared < 0:
        raise ConfigError("--shared counts tokens: give a whole number from 0 on")
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
    """Before minutes of load, not after."""
    for path in (args.json, args.html):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")


@contextmanager
def bar(terminal: Terminal, *, quiet: bool) -> "Iterator[Watch | None]":
    """A bar on stderr, where a person looks at it. Loads tell it how far they are, one after the other."""
    if quiet or not terminal.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=0, unit="request", file=terminal.stderr, dynamic_ncols=True, leave=False) as shown:

        def watch(progress: "Progress") -> None:
            if progress.num_done == progress.num_requests:
                shown.reset()
                shown.clear()  # what is printed next must not stand beside it
                return
            shown.total = progress.num_requests
            shown.n = progress.num_done
            rate = progress.num_chunks / progress.seconds if progress.seconds else 0.0
            facts: dict[str, Any] = {
                "under way": progress.num_sent - progress.num_done,
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
        raise ConfigError(f"--body {text!r} is no JSON object; give one like '{{\"cache_prompt\": false}}'")
    return fields


def _seconds(text: str | None, flag: str) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d*\.?\d+)(ms|s)", text)
    if found is None:
        raise ConfigError(f"{flag} {text!r} is no time: give one like 200ms or 1.5s")
    return float(found[1]) * (1e-3 if found[2] == "ms" else 1.0)
