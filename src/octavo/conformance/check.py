"""Checks and their results."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from octavo.conformance.target import CheckTarget, UnexpectedStatus
from octavo.conformance.transport import Unreachable


class Wrong(Exception):
    """The server did not behave as expected. The message describes the difference in a few words."""


class NotSupported(Exception):
    """The server states that it lacks this feature, or the feature cannot be checked."""


class CheckOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_SUPPORTED = "not supported"


@dataclass(frozen=True)
class Check:
    """`run` returns if the check passes.

    A server may reject a feature that is not required with an explicit error, but must not accept a field and
    then do something else.
    """

    group: str
    name: str
    run: Callable[[CheckTarget], None]
    is_required: bool = True


@dataclass(frozen=True)
class CheckResult:
    check: Check
    outcome: CheckOutcome
    detail: str
    milliseconds: float


def run_check(check: Check, target: CheckTarget) -> CheckResult:
    start = time.perf_counter()
    outcome, detail = _outcome(check, target)
    return CheckResult(check, outcome, detail, (time.perf_counter() - start) * 1000)


def _outcome(check: Check, target: CheckTarget) -> tuple[CheckOutcome, str]:
    try:
        check.run(target)
    except NotSupported as reason:
        return CheckOutcome.NOT_SUPPORTED, str(reason)
    except UnexpectedStatus as rejection:
        may_reject = not check.is_required and rejection.is_clean
        return CheckOutcome.NOT_SUPPORTED if may_reject else CheckOutcome.FAILED, str(rejection)
    except (Wrong, Unreachable) as problem:
        return CheckOutcome.FAILED, str(problem)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, msgspec.MsgspecError) as error:
        # A part that no check verifies explicitly is missing or has another type.
        return CheckOutcome.FAILED, f"unexpected response shape: {type(error).__name__} {error}"[:80]
    return CheckOutcome.PASSED, ""


def expect(condition: object, problem: str) -> None:
    if not condition:
        raise Wrong(problem)


def expect_equal(name: str, found: Any, expected: Any) -> None:
    expect(found == expected, f"{name} is {shown(found)}, not {shown(expected)}")


def expect_kind(name: str, value: Any, kind: type) -> None:
    # In Python, True is an int; in JSON, 1 may represent 1.0.
    is_kind = (
        isinstance(value, int | float) and not isinstance(value, bool)
        if kind is float
        else isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    )
    expect(is_kind, f"{name} is {shown(value)}, not of type {kind.__name__}")


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
