"""Logs for people or machines. Never a prompt, an answer or a key: only what our own code says goes in."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

logger = logging.getLogger(__name__)

FORMATS = ("human", "json")
NO_PROGRESS_BARS = "HF_HUB_DISABLE_PROGRESS_BARS"  # of huggingface_hub, which reads it when it is imported
PYTHON_WARNINGS = "py.warnings"  # the logger that `captureWarnings` uses

# A warning that keeps coming says nothing new.
MOST_REPEATS = 5  # in each window
WINDOW_SECONDS = 60.0


def configure_logs(log_format: str, who: str, level: int | str = logging.WARNING) -> None:
    """For the whole process, before libraries are imported: all that is said goes through one handler.

    For machines that includes what would be written in another form: by libraries with handlers of their
    own, by exceptions that nobody catches, and by progress bars.
    """
    logging.basicConfig(handlers=[make_handler(log_format, who)], level=level, force=True)
    logging.captureWarnings(True)
    if log_format == "json":
        logging.setLoggerClass(HandlerlessLogger)
        os.environ.setdefault(NO_PROGRESS_BARS, "1")
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda it: _log_uncaught(it.exc_type, it.exc_value, it.exc_traceback)
        sys.unraisablehook = lambda it: _log_uncaught(it.exc_type, it.exc_value, it.exc_traceback)


def make_handler(log_format: str, who: str) -> logging.Handler:
    """Writes to stderr. `who` is the process that speaks."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(who) if log_format == "json" else HumanFormatter(who))
    handler.addFilter(RepeatBound())
    return handler


def with_fields(**fields: Any) -> dict[str, Any]:
    """As `extra` of a log call: what machines want to find without taking the message apart."""
    return {"fields": fields}


class HandlerlessLogger(logging.Logger):
    """Has no handlers but the root's, whatever the library that uses it wants."""

    propagate = property(lambda self: True, lambda self, value: None)

    def addHandler(self, hdlr: logging.Handler) -> None:
        pass


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None
) -> None:
    if error is not None:
        logger.critical("an exception was not caught", exc_info=(kind, error, traceback))


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
        self._windows: dict[tuple[str, int], Window] = {}  # by `_place_of`: there are not many

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        now, place = self._clock(), _place_of(record)
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


def _place_of(record: logging.LogRecord) -> tuple[str, int]:
    """The line of code. Python's warnings all come from one, but name their own in the text."""
    if record.name == PYTHON_WARNINGS:
        return record.getMessage(), 0
    return record.pathname, record.lineno


class Window:
    def __init__(self, began: float) -> None:
        self.began = began
        self.said = 0
        self.left_out = 0
