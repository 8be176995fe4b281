"""Validation of values that clients send. Each check raises a `RequestError` that names the invalid field."""

from collections.abc import Iterable

from octavo.errors import RequestError

NO_BOUND = 1 << 31  # the `high` of a whole number without an upper bound


def check_number(name: str, value: object, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]  # NaN is not in any range
        raise RequestError(f"{name} must be a number from {low:g} to {high:g}", name)


def check_integer(name: str, value: object, low: int, high: int, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        allowed = f"from {low} to {high}" if high != NO_BOUND else f"of at least {low}"
        raise RequestError(f"{name} must be a whole number {allowed}", name)


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be True or False", name)


def check_ids(name: str, ids: Iterable[object], vocab_size: int | None = None) -> None:
    """Check token ids. Without `vocab_size`, the caller must check later that the ids exist."""
    for token_id in ids:
        if (
            not isinstance(token_id, int)
            or isinstance(token_id, bool)
            or token_id < 0
            or (vocab_size is not None and token_id >= vocab_size)
        ):
            allowed = "of at least 0" if vocab_size is None else f"from 0 to {vocab_size - 1}"
            raise RequestError(f"{name}: token ids are whole numbers {allowed}", name)
