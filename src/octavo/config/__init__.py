"""All options, each defined once.

A field of `EngineOptions` is also a flag (`--block-size`), an environment variable (`OCTAVO_BLOCK_SIZE`), a
key of the YAML file (`block_size`) and a keyword of `LLM`. A field of `ServerOptions` or `ReplicaOptions` is
all of these but a keyword of `LLM`. `resolve_options` merges the sources and records where each value came
from.
"""

from octavo.config.definition import (
    VARIABLE_PREFIX,
    Group,
    Options,
    OptionSpec,
    flag_of,
    nearest_name,
    option_specs_of,
)
from octavo.config.engine import DTYPE_BYTES, EngineOptions
from octavo.config.replica import ReplicaOptions
from octavo.config.server import MAX_REPLICAS, ServerOptions
from octavo.config.sizes import counted, format_size, parse_size
from octavo.config.sources import Origin, ResolvedOptions, Source, given_value, resolve_options

__all__ = [
    "DTYPE_BYTES",
    "MAX_REPLICAS",
    "VARIABLE_PREFIX",
    "EngineOptions",
    "Group",
    "OptionSpec",
    "Options",
    "Origin",
    "ReplicaOptions",
    "ResolvedOptions",
    "ServerOptions",
    "Source",
    "counted",
    "flag_of",
    "format_size",
    "given_value",
    "nearest_name",
    "option_specs",
    "parse_size",
    "resolve_options",
]


def option_specs(kind: type[Options] = EngineOptions) -> tuple[OptionSpec, ...]:
    """Return all options of a class, in the order of their definition."""
    return option_specs_of(kind)
