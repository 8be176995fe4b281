"""Parse and format sizes and counts."""

import re
from fractions import Fraction

SIZE_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def parse_size(value: object) -> int:
    """Return the bytes of a size such as 4GiB, 800MB, 1.5 GiB or 1000000."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
    if matched is None:
        raise ValueError(f"{value!r} is not a size")
    number, unit = matched.groups()
    if f"{unit}b" in SIZE_UNITS and unit not in SIZE_UNITS:
        decimal, binary = f"{number}{unit.upper()}B", f"{number}{unit.upper()}iB"
        raise ValueError(
            f"{value!r} is ambiguous: write {decimal} (powers of 1000) or {binary} (powers of 1024)"
        )
    if unit not in SIZE_UNITS:
        raise ValueError(f"{value!r} has an unknown unit")
    return int(Fraction(number) * SIZE_UNITS[unit])


def format_size(num_bytes: int) -> str:
    """Return a size with a binary unit, such as 1.50 GiB."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{num_bytes} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 token, 2 tokens, 1,000 tokens."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
