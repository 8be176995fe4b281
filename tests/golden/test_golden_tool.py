"""When `tools/golden_vectors.py --write` does not write the file, and the messages of failures."""

import msgspec
from golden_vectors import write_error

from golden.program import Golden, problem

BEFORE = Golden(3, {"a": "1", "b": "2"}, {"c": "3"})
CHANGED = msgspec.structs.replace(BEFORE, engine={"c": "4"})


def test_changed_hashes_need_a_new_version_or_a_reason() -> None:
    assert "OV_ARITHMETIC is still 3" in str(write_error(BEFORE, CHANGED, None))
    assert write_error(BEFORE, msgspec.structs.replace(CHANGED, arithmetic=4), None) is None
    assert write_error(BEFORE, CHANGED, "not released yet") is None


def test_a_new_version_needs_changed_hashes() -> None:
    assert "no hash differs" in str(write_error(BEFORE, msgspec.structs.replace(BEFORE, arithmetic=4), None))


def test_cases_may_be_added_and_removed() -> None:
    assert write_error(BEFORE, msgspec.structs.replace(BEFORE, hashes={"a": "1", "d": "5"}), None) is None


def test_failure_messages() -> None:
    assert problem({"a": "1"}, {"a": "1"}) is None
    assert "run tools/golden_vectors.py" in str(problem({"a": "1"}, {}))
    assert problem({"a": "1"}, {"a": "2"}) == (
        "bits changed without a new arithmetic version: a; if that is intended, raise OV_ARITHMETIC, "
        "run tools/golden_vectors.py --write and add a row to docs/law.md"
    )
