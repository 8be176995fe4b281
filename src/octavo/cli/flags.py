"""Flags made from the definitions of the options: `EngineOptions` for the engine, one table for sampling."""

import argparse
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from octavo.cli.terminal import Terminal
from octavo.config import (
    EngineOptions,
    Options,
    ResolvedOptions,
    ServerOptions,
    given_value,
    nearest_name,
    option_specs,
    resolve_options,
)
from octavo.errors import ConfigError
from octavo.protocol import SamplingParams


@dataclass(frozen=True)
class SamplingFlag:
    """How a field of `SamplingParams` is given in the terminal; the field itself has the type and default."""

    field: str
    metavar: str
    help: str
    flag: str = ""  # empty: made from the field's name
    is_repeated: bool = False
    one_answer: bool = True  # makes sense where there is one answer to look at, as in a chat

    @property
    def name(self) -> str:
        return self.flag or "--" + self.field.replace("_", "-")


SAMPLING_FLAGS = (
    SamplingFlag("temperature", "X", "0 always takes the likeliest token; above 1 is more varied"),
    SamplingFlag("top_p", "X", "keep the likeliest tokens that together have this probability"),
    SamplingFlag("top_k", "N", "keep the N likeliest tokens; 0: all"),
    SamplingFlag("min_p", "X", "drop tokens less likely than X times the likeliest"),
    SamplingFlag("seed", "N", "the same seed gives the same answer; none: a new one each time"),
    SamplingFlag("max_tokens", "N", "longest answer; none: until the model stops or the context is full"),
    SamplingFlag("min_tokens", "N", "shortest answer: no end of sequence before"),
    SamplingFlag("stop", "TEXT", "end the answer at this text; may be repeated", is_repeated=True),
    SamplingFlag("include_stop", "", "keep the stop text in the answer"),
    SamplingFlag(
        "stop_token_ids", "ID", "end the answer at this token; may be repeated", "--stop-token-id", True
    ),
    SamplingFlag("ignore_eos", "", "go on past the end of sequence"),
    SamplingFlag("presence_penalty", "X", "taken from the logits of tokens already in the answer"),
    SamplingFlag("frequency_penalty", "X", "the same, times how often each is there"),
    SamplingFlag("repetition_penalty", "X", "divides the logits of tokens in prompt and answer; 1: off"),
    SamplingFlag("logit_bias", "ID=X", "add X to a token's logit; may be repeated", is_repeated=True),
    SamplingFlag("skip_special_tokens", "", "leave special tokens out of the text"),
    SamplingFlag("grammar", "KIND=TEXT", "hold the answer to a json_schema, regex, choice or lark"),
    SamplingFlag("n", "N", "answers per prompt", "-n", one_answer=False),
    SamplingFlag("logprobs", "K", "log-probabilities and the K best tokens, with --json", one_answer=False),
    SamplingFlag(
        "prompt_logprobs", "K", "the same for the tokens of the prompt, with --json", one_answer=False
    ),
)
KINDS = {
    "X": "a number",
    "N": "a whole number",
    "K": "a whole number",
    "ID": "token ids",
    "ID=X": "a token id and a number, such as 50=-1.5",
    "TEXT": "text",
    "KIND=TEXT": "a kind and its text, such as regex=[0-9]+",
    "": "true or false",
}
CHAT_SAMPLING_FLAGS = tuple(flag for flag in SAMPLING_FLAGS if flag.one_answer)


def add_option_flags(
    parser: argparse.ArgumentParser, kinds: Sequence[type[Options]] = (EngineOptions,)
) -> None:
    """A flag for every option. Only those given end up in the namespace."""
    groups: dict[str, Any] = {}
    for spec in (spec for kind in kinds for spec in option_specs(kind)):
        if spec.group not in groups:
            groups[spec.group] = parser.add_argument_group(spec.group)
        shown = str(spec.default).lower() if spec.is_switch else spec.default
        note = spec.description + ("" if spec.default is None else f" [{shown}]")
        group = groups[spec.group]
        if spec.is_switch:
            action = argparse.BooleanOptionalAction
            group.add_argument(spec.flag, action=action, default=argparse.SUPPRESS, help=_escaped(note))
        else:
            group.add_argument(
                spec.flag, metavar=spec.metavar, default=argparse.SUPPRESS, help=_escaped(note)
            )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, default=None, help="YAML file of options [$OCTAVO_CONFIG]"
    )


def add_sampling_flags(
    parser: argparse.ArgumentParser, flags: Collection[SamplingFlag] = SAMPLING_FLAGS
) -> None:
    group = parser.add_argument_group(
        "sampling", "what the model's generation_config.json sets replaces the default"
    )
    defaults = SamplingParams()
    for flag in flags:
        default = getattr(defaults, flag.field)
        kwargs: dict[str, Any] = {"dest": flag.field, "default": argparse.SUPPRESS}
        note = flag.help
        if isinstance(default, bool):
            kwargs["action"] = argparse.BooleanOptionalAction
            note += f" [{str(default).lower()}]"
        else:
            kwargs |= {"metavar": flag.metavar, "action": "append" if flag.is_repeated else "store"}
            note += "" if default is None or flag.is_repeated else f" [{default}]"
        group.add_argument(flag.name, help=_escaped(note), **kwargs)


def wants_json_logs(args: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Whether the command is a service with a log for machines. Known before its options are checked."""
    if not getattr(args, "is_service", False):
        return False
    given = {"log_format": args.log_format} if hasattr(args, "log_format") else {}
    return bool(given_value("log_format", given, environ, args.config) == "json")


def options_from(args: argparse.Namespace, terminal: Terminal) -> ResolvedOptions:
    """Flags, environment, file and defaults, merged; what looks like a slip is warned about."""
    names = (spec.name for kind in (EngineOptions, ServerOptions) for spec in option_specs(kind))
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    positional = getattr(args, "model_argument", None)
    if positional is not None:
        if given.get("model", positional) != positional:
            raise ConfigError(f"MODEL is {positional!r} but --model is {given['model']!r}: give one of them")
        given["model"] = positional
    resolved = resolve_options(given, terminal.environ, args.config)
    if not getattr(args, "quiet", False):
        for warning in resolved.warnings:
            terminal.warn(warning)
    return resolved


def sampling_from(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `SamplingParams` that were given; the model's defaults hold for the others."""
    given = {flag.field: getattr(args, flag.field) for flag in SAMPLING_FLAGS if hasattr(args, flag.field)}
    return {field: sampling_value(field, value) for field, value in given.items()}


def sampling_flag(name: str, flags: Collection[SamplingFlag]) -> SamplingFlag:
    """The flag of a field, by the field's name."""
    by_field = {flag.field: flag for flag in flags}
    if name not in by_field:
        raise ConfigError(f"there is no sampling parameter {name!r}{nearest_name(name, by_field)}")
    return by_field[name]


def sampling_value(name: str, value: Any) -> Any:
    """The value of a field from what a person typed: text, or a list of texts for repeated flags."""
    kind = typing.get_type_hints(SamplingParams)[name]
    meant = None if isinstance(value, str) and value.lower() == "none" else value
    try:
        if name == "logit_bias":
            meant = dict(str(item).split("=", 1) for item in value)
        elif name == "grammar" and meant is not None:
            meant = dict(zip(("kind", "text"), str(value).split("=", 1), strict=False))
        return msgspec.convert(meant, kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        flag = sampling_flag(name, SAMPLING_FLAGS)
        shown = ", ".join(value) if isinstance(value, list) else value
        allowed = KINDS[flag.metavar] + (", or none" if type(None) in typing.get_args(kind) else "")
        raise ConfigError(f"{name}: {shown!r} is not allowed; give {allowed} ({flag.help})") from error


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
