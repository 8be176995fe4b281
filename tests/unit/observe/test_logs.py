import json
import logging

import pytest

from octavo.observe.logs import MAX_REPEATS, WINDOW_SECONDS, RepeatLimiter, make_handler, with_fields


def a_record(
    message: str, *arguments: object, level: int = logging.WARNING, line: int = 1
) -> logging.LogRecord:
    return logging.LogRecord("octavo.server", level, "file.py", line, message, arguments, None)


def test_json_format() -> None:
    record = a_record("two\nlines of %s", "text", level=logging.INFO)
    record.__dict__ |= with_fields(request_id="req_1", seconds=0.5)
    line = make_handler("json", "octavo").format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "info",
        "process": "octavo",
        "logger": "octavo.server",
        "message": "two\nlines of text",
        "request_id": "req_1",
        "seconds": 0.5,
    }


def test_human_format() -> None:
    assert make_handler("human", "octavo engine").format(a_record("%d", 7)).endswith(" octavo engine: 7")


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_tracebacks_are_included(log_format: str) -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        record = a_record("it failed")
        record.exc_info = (ValueError, error, error.__traceback__)
    assert "ValueError: why" in make_handler(log_format, "octavo").format(record)


def test_repeated_warnings_are_limited() -> None:
    now = 0.0
    bound = RepeatLimiter(lambda: now)
    assert sum(bound.filter(a_record("number %d", number)) for number in range(100)) == MAX_REPEATS
    assert bound.filter(a_record("from another line", line=2))
    now = WINDOW_SECONDS
    later = a_record("number %d", 100)
    assert bound.filter(later)
    assert later.getMessage() == f"number 100 ({100 - MAX_REPEATS} similar warnings were suppressed)"
    again = a_record("number %d", 101)
    assert bound.filter(again)
    assert again.getMessage() == "number 101"


def test_errors_and_info_lines_are_not_limited() -> None:
    bound = RepeatLimiter()
    for level in (logging.INFO, logging.ERROR):
        assert all(bound.filter(a_record("same", level=level)) for _ in range(100))
