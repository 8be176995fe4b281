"""How an option is defined: a field of a pydantic model, with its texts for help and errors."""

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, ValidatorFunctionWrapHandler

from octavo.config.sizes import parse_size
from octavo.errors import ConfigError

VARIABLE_PREFIX = "OCTAVO_"


class Group(StrEnum):
    """Headings in `--help`."""

    MODEL = "model"
    COMPUTE = "compute"
    MEMORY = "memory"
    SCHEDULING = "scheduling"
    LOGS = "logs"
    SERVER = "server"
    REPLICA = "replica"
    ACCESS = "access"
    LIMITS = "limits"


@dataclass(frozen=True)
class AllowedText:
    """Text for error messages that describes the allowed values of a field better than its type."""

    text: str


@dataclass(frozen=True)
class SwitchableOff:
    """Marks a field with the value `off`, which YAML reads as a boolean."""


def option(
    default: Any, group: Group, description: str, *, former_name: str | None = None, **constraints: Any
) -> Any:
    """Define an option. `former_name` is accepted wherever the name is, so existing setups keep working."""
    extra: dict[str, Any] = {"group": group.value, "former_name": former_name}
    return Field(default, description=description, json_schema_extra=extra, **constraints)


ByteCount = Annotated[int, BeforeValidator(parse_size)]


class Options(pydantic.BaseModel, frozen=True, extra="forbid"):
    """A validated set of options. An invalid value raises a `ConfigError` that names the allowed values."""

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _check_bool(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[str(info.field_name)]
        if value is False and SwitchableOff() in field.metadata:
            return "off"
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError(f"{value} is a boolean")
        return value

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, values: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Self:
        try:
            return typing.cast(Self, check(with_current_names(values, option_specs_of(cls))))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            by_option = {str(problem["loc"][0]): problem for problem in reversed(problems) if problem["loc"]}
            lines = [
                _explain(cls, name, problem, info.context or {})
                for name, problem in sorted(by_option.items())
            ]
            raise ConfigError("; ".join(lines) or str(error)) from error


@dataclass(frozen=True)
class OptionSpec:
    """One option, as described in help texts, environment variables and error messages."""

    name: str
    group: Group
    description: str
    default: Any
    allowed: str
    metavar: str
    is_switch: bool
    is_optional: bool
    former_name: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The name, then the former one if there is one."""
        return (self.name,) if self.former_name is None else (self.name, self.former_name)

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def variable(self) -> str:
        return variable_of(self.name)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return VARIABLE_PREFIX + name.upper()


def option_specs_of(kind: type[Options]) -> tuple[OptionSpec, ...]:
    """Return all options of a class, in the order of their definition."""
    return tuple(_spec(kind, name) for name in kind.model_fields)


def with_current_names(values: Any, specs: Iterable[OptionSpec]) -> Any:
    """Return the values with former names replaced. An option given under both names is an error."""
    if not isinstance(values, Mapping):
        return values
    renamed = dict(values)
    for spec in specs:
        if spec.former_name is None or spec.former_name not in renamed:
            continue
        if spec.name in renamed:
            raise ConfigError(f"{spec.former_name} is the former name of {spec.name}: give one of them")
        renamed[spec.name] = renamed.pop(spec.former_name)
    return renamed


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return a suggestion for the end of an error message, or an empty string if no name is similar."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _explain(kind: type[Options], name: str, problem: Any, origins: Mapping[str, object]) -> str:
    place = str(origins.get(name, name))
    if problem["type"] == "extra_forbidden":
        return f"{place}: unknown option {name!r}{nearest_name(name, kind.model_fields)}"
    reason = f"{problem['input']!r} is not allowed"
    if problem["type"] == "value_error":
        reason = problem["msg"].removeprefix("Value error, ")
    quote = " (in quotes)" if problem["type"] == "string_type" else ""
    return f"{place}: {reason}; give {_spec(kind, name).allowed}{quote}"


def _spec(owner: type[Options], name: str) -> OptionSpec:
    field = owner.model_fields[name]
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
        former_name=extra["former_name"],
    )


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (types.UnionType, typing.Union)


def _allowed_text(kind: Any, choices: tuple[str, ...], is_optional: bool, metadata: Iterable[Any]) -> str:
    constraints = list(metadata)
    for constraint in constraints:
        if isinstance(constraint, AllowedText):
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
