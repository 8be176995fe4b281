"""Every option of the engine, defined once.

A field of `EngineOptions` is at the same time a flag (`--page-size`), a variable (`OCTAVO_PAGE_SIZE`), a key
of the YAML file (`page_size`) and a keyword of `LLM`. `resolve_options` merges the sources and remembers
where each value came from.
"""

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import pydantic
from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, ValidatorFunctionWrapHandler

from octavo.errors import ConfigError

VARIABLE_PREFIX = "OCTAVO_"
CONFIG_VARIABLE = "OCTAVO_CONFIG"
# Variables that are ours but no engine option: they never draw a "did you mean".
OTHER_VARIABLES = re.compile(r"OCTAVO_(CONFIG|API_KEY|KERNEL_LIBRARY|TEST_\w+|CI_\w+)")

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

SIZE_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


class Group(StrEnum):
    """Headings of `--help`."""

    MODEL = "model"
    COMPUTE = "compute"
    MEMORY = "memory"
    SCHEDULING = "scheduling"
    LOGS = "logs"


def parse_size(value: object) -> int:
    """Bytes of a size as people write it: 4GiB, 800MB, 1.5 GiB, 1000000."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
    if matched is None:
        raise ValueError(f"{value!r} is not a size")
    number, unit = matched.groups()
    if f"{unit}b" in SIZE_UNITS and unit not in SIZE_UNITS:
        decimal, binary = f"{number}{unit.upper()}B", f"{number}{unit.upper()}iB"
        raise ValueError(
            f"{value!r} is ambiguous: write {decimal} (powers of 1000) or {binary} (powers of 1024)"
        )
    if unit not in SIZE_UNITS:
        raise ValueError(f"{value!r} has an unknown unit")
    return int(Fraction(number) * SIZE_UNITS[unit])


def format_size(num_bytes: int) -> str:
    """The shortest usual form: 1.50 GiB."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{num_bytes} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def counted(number: int, noun: str) -> str:
    """1 token, 2 tokens, 1,000 tokens"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclass(frozen=True)
class _Allowed:
    """What a field takes, where its type does not say it well."""

    text: str


def _option(default: Any, group: Group, description: str, **constraints: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"group": group.value}, **constraints)


ByteCount = Annotated[int, BeforeValidator(parse_size)]


class EngineOptions(pydantic.BaseModel, frozen=True, extra="forbid"):
    """Checked and complete; a wrong value is a `ConfigError` that says what is allowed."""

    model: str | None = _option(
        None, Group.MODEL, "hub id, or path of a checkpoint folder or GGUF file", min_length=1
    )
    checkpoint_path: str | None = _option(
        None,
        Group.MODEL,
        "path of a checkpoint folder or GGUF file; never looked up on the hub",
        min_length=1,
    )
    revision: str | None = _option(
        None, Group.MODEL, "commit, tag or branch of a hub model (none: its main branch)", min_length=1
    )
    tokenizer: str | None = _option(
        None, Group.MODEL, "folder or hub id of the tokenizer (none: the checkpoint's own)", min_length=1
    )

    device: Annotated[str, _Allowed("auto or a torch device such as cpu, cuda, cuda:1, mps")] = _option(
        "auto",
        Group.COMPUTE,
        "where the model runs; auto: cuda if there is one, else cpu",
        pattern=r"^[a-z]+(:\d+)?$",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _option(
        "auto", Group.COMPUTE, "type of weights, activations and KV; auto: what the checkpoint was saved in"
    )
    threads: int | None = _option(
        None,
        Group.COMPUTE,
        "threads for computing on a CPU (none: one per core)",
        ge=1,
    )

    kernels: Literal["auto", "torch", "portable", "avx2", "avx512", "amx"] = _option(
        "auto",
        Group.COMPUTE,
        "native kernels on a CPU by instruction set, or plain torch; auto: the best this processor has",
    )
    tape: bool = _option(
        True,
        Group.COMPUTE,
        "with native kernels, run a step as one recorded call; off: call every kernel from Python",
    )

    max_model_len: int | None = _option(
        None,
        Group.MEMORY,
        "longest prompt and answer together, in tokens (none: what the model supports and fits)",
        ge=1,
    )
    page_size: int = _option(
        32,
        Group.MEMORY,
        "tokens of KV in a page; 0: one page as long as the context, so KV is contiguous",
        ge=0,
    )
    kv_memory: ByteCount | None = _option(
        None, Group.MEMORY, "memory for KV pages (none: kv_fraction of what is free)", ge=1
    )
    kv_fraction: float | None = _option(
        None,
        Group.MEMORY,
        "part of the memory left after the weights that KV pages may take, if kv_memory is not given"
        " (none: 0.5 on a CPU, 0.9 on an accelerator)",
        gt=0,
        le=1,
    )
    prefix_caching: bool = _option(
        True, Group.MEMORY, "keep the KV of finished prompts and answers for reuse"
    )

    max_running: int = _option(64, Group.SCHEDULING, "sequences computed at once", ge=1)
    max_step_tokens: int = _option(
        512,
        Group.SCHEDULING,
        "tokens computed in a step at most; 0: no limit, so prompts are not chunked",
        ge=0,
    )
    admission: Literal["continuous", "static"] = _option(
        "continuous",
        Group.SCHEDULING,
        "continuous: join as soon as there is room; static: only when all others are done",
    )

    log_level: Literal["debug", "info", "warning", "error"] = _option(
        "info", Group.LOGS, "least urgent messages that the commands show"
    )

    def kv_fraction_on(self, device_type: str) -> float:
        """Part of the free memory for KV: a CPU's memory is shared with everything else on the machine."""
        if self.kv_fraction is not None:
            return self.kv_fraction
        return 0.5 if device_type == "cpu" else 0.9

    def dtype_for(self, checkpoint_config: Mapping[str, Any]) -> str:
        """The key of `DTYPE_BYTES` to compute in. `auto` is what the checkpoint was saved in; weights that do
        not say (quantised ones) are widened to float32, which loses nothing."""
        if self.dtype != "auto":
            return self.dtype
        said = str(checkpoint_config.get("dtype") or checkpoint_config.get("torch_dtype"))
        saved = said.removeprefix("torch.")
        return saved if saved in DTYPE_BYTES else "float32"

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError(f"{value} is a truth value")
        return value

    @pydantic.model_validator(mode="after")
    def _everybody_gets_a_token(self) -> Self:
        if 0 < self.max_step_tokens < self.max_running:
            raise ConfigError(
                f"max_step_tokens ({self.max_step_tokens}) must be at least max_running ({self.max_running}),"
                " so that every running sequence can get a token in every step; or 0 for no limit"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _one_checkpoint(self, info: ValidationInfo) -> Self:
        if self.model is not None and self.checkpoint_path is not None:
            origins = info.context or {}
            model, path = origins.get("model", "model"), origins.get("checkpoint_path", "checkpoint_path")
            raise ConfigError(
                f"both {model} ({self.model!r}) and {path} ({self.checkpoint_path!r}) name the checkpoint:"
                " give one of them (the value none cancels one that comes from the environment or a file)"
            )
        return self

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _errors_say_what_to_do(
        cls, values: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Self:
        try:
            return typing.cast(Self, check(values))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            by_option = {str(problem["loc"][0]): problem for problem in reversed(problems) if problem["loc"]}
            lines = [
                _explain(name, problem, info.context or {}) for name, problem in sorted(by_option.items())
            ]
            raise ConfigError("; ".join(lines) or str(error)) from error


@dataclass(frozen=True)
class OptionSpec:
    """One option as people meet it: in help texts, variables and error messages."""

    name: str
    group: Group
    description: str
    default: Any
    allowed: str
    metavar: str
    is_switch: bool
    is_optional: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return VARIABLE_PREFIX + self.name.upper()


def option_specs() -> tuple[OptionSpec, ...]:
    """All options, in the order of their definition."""
    return tuple(_spec(name) for name in EngineOptions.model_fields)


class Source(StrEnum):
    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True)
class Origin:
    """Where a value came from; `place` is the flag, the variable, or path:key."""

    source: Source
    place: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.place}".rstrip()


@dataclass(frozen=True)
class ResolvedOptions:
    options: EngineOptions
    origins: Mapping[str, Origin]
    warnings: tuple[str, ...] = ()


def resolve_options(
    flags: Mapping[str, Any], environ: Mapping[str, str], config_file: Path | None = None
) -> ResolvedOptions:
    """Merge the sources: flags, then OCTAVO_* variables, then the YAML file, then defaults.

    `flags` holds only what was given. The text "none" stands for no value, in every source.
    """
    specs = {spec.name: spec for spec in option_specs()}
    if config_file is None and environ.get(CONFIG_VARIABLE):
        config_file = Path(environ[CONFIG_VARIABLE])

    values: dict[str, Any] = {}
    origins = {name: Origin(Source.DEFAULT) for name in specs}
    if config_file is not None:
        for key, value in _read_config_file(config_file).items():
            values[key], origins[key] = value, Origin(Source.FILE, f"{config_file}:{key}")
    for spec in specs.values():
        if environ.get(spec.variable):  # an empty variable counts as unset
            values[spec.name] = environ[spec.variable]
            origins[spec.name] = Origin(Source.ENVIRONMENT, spec.variable)
    for name, value in flags.items():
        values[name], origins[name] = value, Origin(Source.FLAG, "--" + name.replace("_", "-"))

    for name, value in values.items():
        if isinstance(value, str) and value.lower() == "none" and name in specs and specs[name].is_optional:
            values[name] = None
    options = EngineOptions.model_validate(values, context=origins)
    return ResolvedOptions(
        options, types.MappingProxyType(origins), _unknown_variables(environ, specs.values())
    )


def nearest_name(name: str, names: Iterable[str]) -> str:
    """A clause for the end of an error message, empty if nothing is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _read_config_file(path: Path) -> dict[str, Any]:
    try:
        content = msgspec.yaml.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"the config file {path} is not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"the config file {path} must hold one option per line, such as 'page_size: 32'")
    return {str(key): value for key, value in content.items()}


def _unknown_variables(environ: Mapping[str, str], specs: Iterable[OptionSpec]) -> tuple[str, ...]:
    known = [spec.variable for spec in specs]
    return tuple(
        f"{name} is set but is not an option{nearest_name(name, known)}"
        for name in sorted(environ)
        if name.startswith(VARIABLE_PREFIX) and name not in known and not OTHER_VARIABLES.fullmatch(name)
    )


def _explain(name: str, problem: Any, origins: Mapping[str, Origin]) -> str:
    place = str(origins.get(name, name))
    if problem["type"] == "extra_forbidden":
        return f"{place}: there is no option {name!r}{nearest_name(name, EngineOptions.model_fields)}"
    reason = f"{problem['input']!r} is not allowed"
    if problem["type"] == "value_error":
        reason = problem["msg"].removeprefix("Value error, ")
    quote = " (in quotes)" if problem["type"] == "string_type" else ""
    return f"{place}: {reason}; give {_spec(name).allowed}{quote}"


def _spec(name: str) -> OptionSpec:
    field = EngineOptions.model_fields[name]
    alternatives = typing.get_args(field.annotation) if _is_union(field.annotation) else (field.annotation,)
    is_optional = type(None) in alternatives
    kind = next(alternative for alternative in alternatives if alternative is not type(None))
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    extra = typing.cast(dict[str, Any], field.json_schema_extra)
    return OptionSpec(
        name=name,
        group=Group(extra["group"]),
        description=field.description or "",
        default=field.default,
        allowed=_allowed_text(kind, choices, is_optional, field.metadata),
        metavar="|".join(choices) or {int: "N", float: "X", ByteCount: "SIZE"}.get(kind, "TEXT"),
        is_switch=kind is bool,
        is_optional=is_optional,
    )


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (types.UnionType, typing.Union)


def _allowed_text(kind: Any, choices: tuple[str, ...], is_optional: bool, metadata: Iterable[Any]) -> str:
    constraints = list(metadata)
    for constraint in constraints:
        if isinstance(constraint, _Allowed):
            return constraint.text
    if choices:
        text = "one of " + ", ".join(choices)
    else:
        text = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            ByteCount: "a size such as 4GiB, 800MB or a number of bytes",
        }.get(kind, "text")
    for attribute, words in (("ge", "at least"), ("gt", "above"), ("le", "at most")):
        bounds = [
            getattr(constraint, attribute) for constraint in constraints if hasattr(constraint, attribute)
        ]
        text += "".join(f", {words} {bound}" for bound in bounds)
    return text + (", or none" if is_optional else "")
