"""The sources of option values: flags, environment variables, a YAML file, defaults."""

import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from octavo.config.definition import (
    VARIABLE_PREFIX,
    Options,
    OptionSpec,
    flag_of,
    nearest_name,
    option_specs_of,
    variable_of,
    with_current_names,
)
from octavo.config.engine import EngineOptions
from octavo.config.replica import ReplicaOptions
from octavo.config.server import ServerOptions
from octavo.errors import ConfigError

KINDS: tuple[type[Options], ...] = (EngineOptions, ServerOptions, ReplicaOptions)
CONFIG_VARIABLE = "OCTAVO_CONFIG"
# Octavo's variables that are not options: no warning for them.
OTHER_VARIABLES = re.compile(r"OCTAVO_(CONFIG|CACHE_DIR|KERNEL_LIBRARY|TEST_\w+|CI_\w+)")


class Source(StrEnum):
    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True)
class Origin:
    """Where a value came from. `place` is the flag, the variable, or path:key."""

    source: Source
    place: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.place}".rstrip()


@dataclass(frozen=True)
class ResolvedOptions:
    options: EngineOptions
    server: ServerOptions
    replica: ReplicaOptions
    origins: Mapping[str, Origin]
    warnings: tuple[str, ...] = ()

    def is_given(self, name: str) -> bool:
        """Return whether an option was given, by a flag, a variable or the file."""
        origin = self.origins.get(name)
        return origin is not None and origin.source is not Source.DEFAULT


def resolve_options(
    flags: Mapping[str, Any], environ: Mapping[str, str], config_file: Path | None = None
) -> ResolvedOptions:
    """Merge the sources: flags, then OCTAVO_* variables, then the YAML file, then defaults.

    `flags` has only the flags that were given. In every source, the text "none" stands for no value.
    """
    specs = _all_specs()
    values, origins = _gathered(specs, flags, environ, config_file)
    by_kind: dict[type[Options], dict[str, Any]] = {kind: {} for kind in KINDS}
    for name, value in values.items():
        by_kind[_kind_of(name)][name] = value
    return ResolvedOptions(
        EngineOptions.model_validate(by_kind[EngineOptions], context=origins),
        ServerOptions.model_validate(by_kind[ServerOptions], context=origins),
        ReplicaOptions.model_validate(by_kind[ReplicaOptions], context=origins),
        types.MappingProxyType(origins),
        _unknown_variables(environ, specs.values()),
    )


def given_value(
    name: str, flags: Mapping[str, Any], environ: Mapping[str, str], config_file: Path | None = None
) -> Any:
    """Return the unvalidated value of an option, or None. A config file that cannot be read is ignored."""
    try:
        values, _ = _gathered(_all_specs(), flags, environ, config_file)
    except ConfigError:
        without_file = {key: value for key, value in environ.items() if key != CONFIG_VARIABLE}
        values, _ = _gathered(_all_specs(), flags, without_file, None)
    return values.get(name)


def _all_specs() -> dict[str, OptionSpec]:
    return {spec.name: spec for kind in KINDS for spec in option_specs_of(kind)}


def _gathered(
    specs: Mapping[str, OptionSpec],
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    config_file: Path | None,
) -> tuple[dict[str, Any], dict[str, Origin]]:
    """Return the given values and their origins. Later sources override earlier ones."""
    if config_file is None and environ.get(CONFIG_VARIABLE):
        config_file = Path(environ[CONFIG_VARIABLE])
    content = {} if config_file is None else _read_config_file(config_file)
    in_file = {key: (value, Origin(Source.FILE, f"{config_file}:{key}")) for key, value in content.items()}
    in_environment = {
        name: (environ[variable], Origin(Source.ENVIRONMENT, variable))
        for name, variable in _variables(specs.values()).items()
        if environ.get(variable)  # an empty variable counts as unset
    }
    in_flags = {name: (value, Origin(Source.FLAG, flag_of(name))) for name, value in flags.items()}

    values: dict[str, Any] = {}
    origins = {name: Origin(Source.DEFAULT) for name in specs}
    for given in (in_file, in_environment, in_flags):
        for name, (value, origin) in with_current_names(given, specs.values()).items():
            values[name], origins[name] = value, origin
    for name, value in values.items():
        if isinstance(value, str) and value.lower() == "none" and name in specs and specs[name].is_optional:
            values[name] = None
    return values, origins


def _variables(specs: Iterable[OptionSpec]) -> dict[str, str]:
    """Return the variable of every name, former names included."""
    return {name: variable_of(name) for spec in specs for name in spec.names}


def _kind_of(name: str) -> type[Options]:
    """Return the class of an option. An unknown name counts for the first class with a similar name."""
    kinds = [kind for kind in KINDS if name in kind.model_fields]
    similar = [kind for kind in KINDS if nearest_name(name, kind.model_fields)]
    found: list[type[Options]] = [*kinds, *similar, EngineOptions]
    return found[0]


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
        raise ConfigError(f"the config file {path} must hold one option per line, such as 'block_size: 32'")
    return {str(key): value for key, value in content.items()}


def _unknown_variables(environ: Mapping[str, str], specs: Iterable[OptionSpec]) -> tuple[str, ...]:
    known = _variables(specs).values()
    return tuple(
        f"{name} is set but is not an option{nearest_name(name, known)}"
        for name in sorted(environ)
        if name.startswith(VARIABLE_PREFIX) and name not in known and not OTHER_VARIABLES.fullmatch(name)
    )
