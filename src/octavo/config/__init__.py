"""Every option, defined once.

A field of `EngineOptions` is at the same time a flag (`--page-size`), a variable (`OCTAVO_PAGE_SIZE`), a key
of the YAML file (`page_size`) and a keyword of `LLM`; one of `ServerOptions` all but the last.
`resolve_options` merges the sources and remembers where each value came from.
"""

from octavo.config.definition import (
    VARIABLE_PREFIX,
    Group,
    Options,
    OptionSpec,
    nearest_name,
    option_specs_of,
)
from octavo.config.engine import DTYPE_BYTES, EngineOptions
from octavo.config.server import ServerOptions
from octavo.config.sizes import counted, format_size, parse_size
from octavo.config.sources import Origin, ResolvedOptions, Source, given_value, resolve_options

__all__ = [
    "DTYPE_BYTES",
    "VARIABLE_PREFIX",
    "EngineOptions",
    "Group",
    "OptionSpec",
    "Options",
    "Origin",
    "ResolvedOptions",
    "ServerOptions",
    "Source",
    "counted",
    "format_size",
    "given_value",
    "nearest_name",
    "option_specs",
    "parse_size",
    "resolve_options",
]


def option_specs(kind: type[Options] = EngineOptions) -> tuple[OptionSpec, ...]:
    """All options of a kind, in the order of their definition."""
    return option_specs_of(kind)
