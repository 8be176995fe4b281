"""What an option is: a field of a model, with the words people meet it by."""

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
    """Headings of `--help`."""

    MODEL = "model"
    COMPUTE = "compute"
    MEMORY = "memory"
    SCHEDULING = "scheduling"
    LOGS = "logs"
    SERVER = "server"
    ACCESS = "access"
    LIMITS = "limits"


@dataclass(frozen=True)
class Allowed:
    """What a field takes, where its type does not say it well."""

    text: str


def option(default: Any, group: Group, description: str, **constraints: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"group": group.value}, **constraints)


ByteCount = Annotated[int, BeforeValidator(parse_size)]


class Options(pydantic.BaseModel, frozen=True, extra="forbid"):
    """Checked and complete; a wrong value is a `ConfigError` that says what is allowed."""

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError(f"{value} is a truth value")
        return value

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
                _explain(cls, name, problem, info.context or {})
                for name, problem in sorted(by_option.items())
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


def option_specs_of(kind: type[Options]) -> tuple[OptionSpec, ...]:
    """All options of a kind, in the order of their definition."""
    return tuple(_spec(kind, name) for name in kind.model_fields)


def nearest_name(name: str, names: Iterable[str]) -> str:
    """A clause for the end of an error message, empty if nothing is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _explain(kind: type[Options], name: str, problem: Any, origins: Mapping[str, object]) -> str:
    place = str(origins.get(name, name))
    if problem["type"] == "extra_forbidden":
        return f"{place}: there is no option {name!r}{nearest_name(name, kind.model_fields)}"
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
    )


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (types.UnionType, typing.Union)


def _allowed_text(kind: Any, choices: tuple[str, ...], is_optional: bool, metadata: Iterable[Any]) -> str:
    constraints = list(metadata)
    for constraint in constraints:
        if isinstance(constraint, Allowed):
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
