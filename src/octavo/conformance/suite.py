"""All checks. The order makes the first failure likely to explain the later ones."""

from collections.abc import Iterator
from dataclasses import replace

from octavo.conformance import (
    chat,
    completions,
    errors,
    identity,
    messages,
    models,
    repeats,
    responses,
    streams,
)
from octavo.conformance.check import Check, CheckResult, Wrong, run_check
from octavo.conformance.models import listed_models
from octavo.conformance.target import CheckTarget, UnexpectedStatus
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
    *messages.CHECKS,
    *responses.CHECKS,
)


def with_model(target: CheckTarget) -> CheckTarget:
    """Return the target, with the first model that the server lists if none was given."""
    try:
        found = listed_models(target)
    except Unreachable as problem:
        raise OctavoError(f"the server cannot be reached: {problem}") from problem
    except (UnexpectedStatus, Wrong) as problem:
        if target.model:
            return target
        raise ConfigError(f"the server does not list its models ({problem}): set --model") from problem
    if not (target.model or found):
        raise ConfigError("the server lists no models: set --model")
    return target if target.model else replace(target, model=found[0])


def run_all(target: CheckTarget) -> Iterator[CheckResult]:
    for check in ALL_CHECKS:
        yield run_check(check, target)
