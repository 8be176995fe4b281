"""Logs for people or machines. Never a prompt, an answer or a key: only what our own code says goes in."""

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

FORMATS = ("human", "json")

# A warning that keeps coming says nothing new.
MOST_REPEATS = 5  # in each window
WINDOW_SECONDS = 60.0


def make_handler(log_format: str, who: str) -> logging.Handler:
    """Writes to stderr. `who` is the process that speaks."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(who) if log_format == "json" else HumanFormatter(who))
    handler.addFilter(RepeatBound())
    return handler


def with_fields(**fields: Any) -> dict[str, Any]:
    """As `extra` of a log call: what machines want to find without taking the message apart."""
    return {"fields": fields}


class HumanFormatter(logging.Formatter):
    def __init__(self, who: str) -> None:
        super().__init__(f"%(asctime)s {who}: %(message)s", "%Y-%m-%d %H:%M:%S")
        self.default_msec_format = "%s.%03d"


class JsonFormatter(logging.Formatter):
    """One object on one line."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._who,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class RepeatBound(logging.Filter):
    """Lets the first few of a warning through, then tells how many were left out.

    Errors are not bound: a client may have been told that the log has one under its id.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[tuple[str, int], Window] = {}  # by the line of code: there are not many

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        now, place = self._clock(), (record.pathname, record.lineno)
        window = self._windows.get(place)
        if window is None or now - window.began >= WINDOW_SECONDS:
            left_out = 0 if window is None else window.left_out
            window = self._windows[place] = Window(now)
            if left_out:
                record.msg = f"{record.getMessage()} ({left_out} more like this were left out before)"
                record.args = ()
        window.said += 1
        if window.said <= MOST_REPEATS:
            return True
        window.left_out += 1
        return False


class Window:
    def __init__(self, began: float) -> None:
        self.began = began
        self.said = 0
        self.left_out = 0
