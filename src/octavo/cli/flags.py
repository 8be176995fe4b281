"""Command-line flags, generated from the option classes and from a table of sampling parameters."""

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
    ReplicaOptions,
    ResolvedOptions,
    ServerOptions,
    flag_of,
    given_value,
    nearest_name,
    option_specs,
    resolve_options,
)
from octavo.errors import ConfigError
from octavo.protocol import SamplingParams


@dataclass(frozen=True)
class SamplingFlag:
    """The flag of a `SamplingParams` field. The field itself defines the type and the default."""

    field: str
    metavar: str
    help: str
    flag: str = ""  # empty: derived from the field's name
    is_repeated: bool = False
    one_answer: bool = True  # also applies to a chat, which shows a single answer

    @property
    def name(self) -> str:
        return self.flag or "--" + self.field.replace("_", "-")


SAMPLING_FLAGS = (
    SamplingFlag("temperature", "X", "0: always the most probable token; above 1: more varied answers"),
    SamplingFlag("top_p", "X", "keep the most probable tokens that together have this probability"),
    SamplingFlag("top_k", "N", "keep the N most probable tokens; 0: all"),
    SamplingFlag("min_p", "X", "drop tokens less probable than X times the most probable one"),
    SamplingFlag("seed", "N", "random seed; the same seed gives the same answer; none: a new seed each time"),
    SamplingFlag(
        "max_tokens", "N", "maximum tokens of the answer; none: until the model stops or the context is full"
    ),
    SamplingFlag("min_tokens", "N", "minimum tokens of the answer before an end-of-sequence token"),
    SamplingFlag("stop", "TEXT", "end the answer at this text; may be repeated", is_repeated=True),
    SamplingFlag("include_stop", "", "keep the stop text in the answer"),
    SamplingFlag(
        "stop_token_ids", "ID", "end the answer at this token; may be repeated", "--stop-token-id", True
    ),
    SamplingFlag("ignore_eos", "", "continue past the end-of-sequence token"),
    SamplingFlag("presence_penalty", "X", "subtract X from the logits of tokens already in the answer"),
    SamplingFlag(
        "frequency_penalty", "X", "subtract X from a token's logit for each time it is in the answer"
    ),
    SamplingFlag("repetition_penalty", "X", "divide the logits of tokens in prompt and answer by X; 1: off"),
    SamplingFlag("logit_bias", "ID=X", "add X to a token's logit; may be repeated", is_repeated=True),
    SamplingFlag("skip_special_tokens", "", "omit special tokens from the text"),
    SamplingFlag(
        "grammar", "KIND=TEXT", "constrain the answer to a json_schema, regex, choice or lark grammar"
    ),
    SamplingFlag("n", "N", "number of answers per prompt", "-n", one_answer=False),
    SamplingFlag(
        "logprobs", "K", "with --json, log-probabilities and the K most probable tokens", one_answer=False
    ),
    SamplingFlag(
        "prompt_logprobs", "K", "with --json, the same for the tokens of the prompt", one_answer=False
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
    parser: argparse.ArgumentParser,
    kinds: Sequence[type[Options]] = (EngineOptions,),
    others: Collection[str] = (),
) -> None:
    """Add a flag for every option of these classes, and for `others` of the server's. The parsed namespace
    has only the flags that were given."""
    groups: dict[str, Any] = {}
    specs = [spec for kind in kinds for spec in option_specs(kind)]
    for spec in (*specs, *(one for one in option_specs(ServerOptions) if one.name in others)):
        if spec.group not in groups:
            groups[spec.group] = parser.add_argument_group(spec.group)
        shown = str(spec.default).lower() if spec.is_switch else spec.default
        note = spec.description + ("" if spec.default is None else f" [{shown}]")
        group, flags = groups[spec.group], [flag_of(name) for name in spec.names]
        if spec.is_switch:
            action = argparse.BooleanOptionalAction
            group.add_argument(*flags, action=action, default=argparse.SUPPRESS, help=_escaped(note))
        else:
            group.add_argument(*flags, metavar=spec.metavar, default=argparse.SUPPRESS, help=_escaped(note))
    parser.add_argument(
        "--config", metavar="FILE", type=Path, default=None, help="YAML file of options [$OCTAVO_CONFIG]"
    )


def add_sampling_flags(
    parser: argparse.ArgumentParser, flags: Collection[SamplingFlag] = SAMPLING_FLAGS
) -> None:
    group = parser.add_argument_group(
        "sampling", "the model's generation_config.json overrides these defaults"
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
    """Whether the command is a service that logs JSON. Does not need valid options."""
    if not getattr(args, "is_service", False):
        return False
    given = {"log_format": args.log_format} if hasattr(args, "log_format") else {}
    return bool(given_value("log_format", given, environ, args.config) == "json")


def options_from(args: argparse.Namespace, terminal: Terminal) -> ResolvedOptions:
    """Merge flags, environment, file and defaults. Warn about variables that look like misspelt options."""
    kinds = (EngineOptions, ServerOptions, ReplicaOptions)
    names = (spec.name for kind in kinds for spec in option_specs(kind))
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
    """Return the `SamplingParams` fields that were given. The model's defaults apply to the others."""
    given = {flag.field: getattr(args, flag.field) for flag in SAMPLING_FLAGS if hasattr(args, flag.field)}
    return {field: sampling_value(field, value) for field, value in given.items()}


def sampling_flag(name: str, flags: Collection[SamplingFlag]) -> SamplingFlag:
    """Return the flag of a field by the field's name."""
    by_field = {flag.field: flag for flag in flags}
    if name not in by_field:
        raise ConfigError(f"unknown sampling parameter {name!r}{nearest_name(name, by_field)}")
    return by_field[name]


def sampling_value(name: str, value: Any) -> Any:
    """Convert typed text to the value of a field. Repeated flags have a list of texts."""
    kind = typing.get_type_hints(SamplingParams)[name]
    parsed = None if isinstance(value, str) and value.lower() == "none" else value
    try:
        if name == "logit_bias":
            parsed = dict(str(item).split("=", 1) for item in value)
        elif name == "grammar" and parsed is not None:
            parsed = dict(zip(("kind", "text"), str(value).split("=", 1), strict=False))
        return msgspec.convert(parsed, kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        flag = sampling_flag(name, SAMPLING_FLAGS)
        shown = ", ".join(value) if isinstance(value, list) else value
        allowed = KINDS[flag.metavar] + (", or none" if type(None) in typing.get_args(kind) else "")
        raise ConfigError(f"{name}: {shown!r} is not allowed; give {allowed} ({flag.help})") from error


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
