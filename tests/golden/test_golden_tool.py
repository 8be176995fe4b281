"""When `tools/golden_vectors.py --write` refuses, and what a failure says."""

import msgspec
from golden_vectors import refusal

from golden.program import Golden, problem

BEFORE = Golden(3, {"a": "1", "b": "2"}, {"c": "3"})
MOVED = msgspec.structs.replace(BEFORE, engine={"c": "4"})


def test_other_bits_need_another_number_or_a_reason() -> None:
    assert "OV_ARITHMETIC is still 3" in str(refusal(BEFORE, MOVED, None))
    assert refusal(BEFORE, msgspec.structs.replace(MOVED, arithmetic=4), None) is None
    assert refusal(BEFORE, MOVED, "not released yet") is None


def test_another_number_needs_other_bits() -> None:
    assert "no hash differs" in str(refusal(BEFORE, msgspec.structs.replace(BEFORE, arithmetic=4), None))


def test_cases_may_come_and_go() -> None:
    assert refusal(BEFORE, msgspec.structs.replace(BEFORE, hashes={"a": "1", "d": "5"}), None) is None


def test_what_a_failure_says() -> None:
    assert problem({"a": "1"}, {"a": "1"}) is None
    assert "run tools/golden_vectors.py" in str(problem({"a": "1"}, {}))
    assert problem({"a": "1"}, {"a": "2"}) == (
        "bits changed without a new arithmetic version: a; if that is intended, raise OV_ARITHMETIC, "
        "run tools/golden_vectors.py --write and add a row to docs/law.md"
    )
