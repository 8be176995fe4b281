"""All checks, in an order in which the first failure explains those that follow."""

from collections.abc import Iterator
from dataclasses import replace

from octavo.conformance import chat, completions, errors, identity, models, repeats, streams
from octavo.conformance.check import Check, Result, Wrong, run_check
from octavo.conformance.models import listed_models
from octavo.conformance.target import Refused, Target
from octavo.conformance.transport import Unreachable
from octavo.errors import ConfigError, OctavoError

ALL_CHECKS: tuple[Check, ...] = (
    *models.CHECKS,
    *completions.CHECKS,
    *chat.CHECKS,
    *streams.CHECKS,
    *errors.CHECKS,
    *identity.CHECKS,
    *repeats.CHECKS,
)


def with_model(target: Target) -> Target:
    """The same server, and the first model of its list if none was named."""
    try:
        found = listed_models(target)
    except Unreachable as problem:
        raise OctavoError(f"the server cannot be reached: {problem}") from problem
    except (Refused, Wrong) as problem:
        if target.model:
            return target
        raise ConfigError(f"the server does not list its models ({problem}): give --model") from problem
    if not (target.model or found):
        raise ConfigError("the server lists no models: give --model")
    return target if target.model else replace(target, model=found[0])


def run_all(target: Target) -> Iterator[Result]:
    for check in ALL_CHECKS:
        yield run_check(check, target)
