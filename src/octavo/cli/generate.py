"""`octavo generate`: complete prompts."""

import argparse
import time
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.cli.answer import STOPPED, ignore, stream_answer
from octavo.cli.flags import add_option_flags, add_sampling_flags, sampling_from
from octavo.cli.invocation import Invocation
from octavo.cli.model import LanguageModel, require_model, with_seed
from octavo.cli.terminal import Terminal
from octavo.config import counted
from octavo.errors import ConfigError, RequestError
from octavo.protocol import SamplingParams

if TYPE_CHECKING:
    from octavo.frontend.output import Choice, RequestOutput

USAGE = "generate MODEL -p TEXT"
DESCRIPTION = """\
Complete prompts. A single prompt is streamed; several prompts run as a batch and are printed in order.
Text goes to stdout, progress and statistics to stderr."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_argument", metavar="MODEL", nargs="?", help="model to run; same as --model")
    parser.add_argument(
        "-p",
        "--prompt",
        metavar="TEXT",
        action="append",
        default=[],
        help="prompt, or - for stdin; may be repeated [stdin, if it is a pipe]",
    )
    parser.add_argument("--chat", action="store_true", help="send each prompt as the user message of a chat")
    parser.add_argument("--system", metavar="TEXT", default=None, help="system message, with --chat")
    parser.add_argument("--json", action="store_true", help="print one JSON object per answer")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print only the text: no statistics, no progress"
    )
    add_sampling_flags(parser)
    add_option_flags(parser)


def run(call: Invocation) -> int:
    args, terminal = call.args, call.terminal
    sampling = sampling_from(args)
    require_model(call.options, "generate")
    if args.system is not None and not args.chat:
        raise ConfigError("--system needs a chat: add --chat")
    prompts = _prompts(args.prompt, terminal)
    llm = call.open_model(call.options, progress=not args.quiet and terminal.stderr.isatty())
    try:
        params = with_seed(msgspec.structs.replace(llm.default_params, **sampling))
        if len(prompts) == 1 and params.n == 1 and not args.json:
            _stream(llm, prompts[0], params, args, terminal)
        else:
            _run_together(llm, prompts, params, args, terminal)
    finally:
        llm.close()
    return 0


def _prompts(given: list[str], terminal: Terminal) -> list[str]:
    if not given:
        if terminal.stdin.isatty():
            raise ConfigError("no prompt: give one with -p TEXT, or pipe it in")
        given = ["-"]
    if given.count("-") > 1:
        raise ConfigError("-p - reads all of stdin, so it can be given only once")
    # The newline at the end of piped text comes from the shell, not from the author.
    return [terminal.read_all().removesuffix("\n") if text == "-" else text for text in given]


def _conversation(prompt: str, system: str | None) -> list[dict[str, Any]]:
    opening = [{"role": "system", "content": system}] if system is not None else []
    return [*opening, {"role": "user", "content": prompt}]


def _stream(
    llm: LanguageModel, prompt: str, params: SamplingParams, args: argparse.Namespace, terminal: Terminal
) -> None:
    def start() -> Any:
        if args.chat:
            return llm.stream_chat(_conversation(prompt, args.system), params)
        return llm.stream(prompt, params)

    write_reasoning = ignore if args.quiet else terminal.aside
    answer = stream_answer(llm, start, terminal.write, params.seed, write_reasoning=write_reasoning)
    if not answer.text.endswith("\n"):
        terminal.write("\n")
    if not args.quiet:
        terminal.note(answer.summary())
    if answer.finish_reason == STOPPED:
        raise KeyboardInterrupt


def _run_together(
    llm: LanguageModel,
    prompts: list[str],
    params: SamplingParams,
    args: argparse.Namespace,
    terminal: Terminal,
) -> None:
    progress = not args.quiet and terminal.stderr.isatty()
    began = time.perf_counter()
    if args.chat:
        conversations = [_conversation(prompt, args.system) for prompt in prompts]
        results = llm.chat(conversations, params, progress=progress)
    else:
        results = llm.generate(prompts, params, progress=progress)
    seconds = time.perf_counter() - began
    for index, result in enumerate(results):
        _print_result(index, result, args, terminal, llm.facts.system_fingerprint)
    if not args.quiet:
        terminal.note(_totals(results, seconds))
    errors = [choice.error for result in results for choice in result.choices if choice.error]
    if errors:
        raise RequestError(f"{counted(len(errors), 'answer')} failed; the first: {errors[0]}")


def _print_result(
    index: int, result: "RequestOutput", args: argparse.Namespace, terminal: Terminal, fingerprint: str
) -> None:
    for choice in result.choices:
        if args.json:
            terminal.write(msgspec.json.encode(_as_json(index, result, choice, fingerprint)).decode() + "\n")
            continue
        if not args.quiet:
            of_several = f", answer {choice.index + 1}" if len(result.choices) > 1 else ""
            terminal.note(f"prompt {index + 1}{of_several}: {choice.finish_reason}")
            if choice.reasoning is not None:
                terminal.note(choice.reasoning)
        terminal.write(choice.text if choice.text.endswith("\n") else choice.text + "\n")


def _as_json(index: int, result: "RequestOutput", choice: "Choice", fingerprint: str) -> dict[str, Any]:
    return {
        "prompt": index,
        "choice": choice.index,
        "text": choice.text,
        "reasoning": choice.reasoning,
        "token_ids": choice.token_ids,
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "error": choice.error,
        "usage": {
            "prompt_tokens": len(result.prompt_ids),
            "cached_tokens": result.num_cached,
            "completion_tokens": len(choice.token_ids),
        },
        "prompt_logprobs": result.prompt_logprobs,
        "timings": choice.timings,
        "seed": result.seed,
        "system_fingerprint": fingerprint,
    }


def _totals(results: "list[RequestOutput]", seconds: float) -> str:
    choices = [choice for result in results for choice in result.choices]
    tokens = sum(len(choice.token_ids) for choice in choices)
    prompt = sum(len(result.prompt_ids) for result in results)
    cached = sum(result.num_cached for result in results)
    seeds = sorted({result.seed for result in results if result.seed is not None})
    parts = [
        counted(len(choices), "answer"),
        counted(tokens, "token"),
        f"{tokens / max(seconds, 1e-9):.1f} tok/s",
    ]
    parts += [f"prompts {prompt} ({cached} cached)", f"{seconds:.2f} s"]
    parts += [f"seed {', '.join(map(str, seeds))}"] if seeds else []
    return " · ".join(parts)
