"""What a check is, and what can come of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo.conformance.target import Refused, Target
from octavo.conformance.transport import Unreachable


class Wrong(Exception):
    """The server did something else than it should. The text says what, in a few words."""


class NotSupported(Exception):
    """The server says itself that it has none of this, or there is nothing to see it by."""


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_SUPPORTED = "not supported"


@dataclass(frozen=True)
class Check:
    """`run` returns if all is well. Many servers lack what is not required, and may refuse it, with an error
    that says so; but nobody may accept a field and then do something else."""

    group: str
    name: str
    run: Callable[[Target], None]
    is_required: bool = True


@dataclass(frozen=True)
class Result:
    check: Check
    outcome: Outcome
    detail: str
    milliseconds: float


def run_check(check: Check, target: Target) -> Result:
    start = time.perf_counter()
    outcome, detail = _outcome(check, target)
    return Result(check, outcome, detail, (time.perf_counter() - start) * 1000)


def _outcome(check: Check, target: Target) -> tuple[Outcome, str]:
    try:
        check.run(target)
    except NotSupported as reason:
        return Outcome.NOT_SUPPORTED, str(reason)
    except Refused as refusal:
        may_refuse = not check.is_required and refusal.is_clean
        return Outcome.NOT_SUPPORTED if may_refuse else Outcome.FAILED, str(refusal)
    except (Wrong, Unreachable) as problem:
        return Outcome.FAILED, str(problem)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        # Something is not there or is of another kind, where no check of its own looks for it.
        return Outcome.FAILED, f"an answer of another shape: {type(error).__name__} {error}"[:80]
    return Outcome.PASSED, ""


def expect(is_right: object, otherwise: str) -> None:
    if not is_right:
        raise Wrong(otherwise)


def expect_equal(name: str, found: Any, expected: Any) -> None:
    expect(found == expected, f"{name} is {shown(found)}, not {shown(expected)}")


def expect_kind(name: str, value: Any, kind: type) -> None:
    # True is an int for Python, and 1 may stand for 1.0 in JSON.
    is_right = (
        isinstance(value, int | float) and not isinstance(value, bool)
        if kind is float
        else isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    )
    expect(is_right, f"{name} is {shown(value)}, not of the kind {kind.__name__}")


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
