"""Human-readable or JSON logs. They never contain a prompt, an answer or a key."""

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
NO_PROGRESS_BARS = "HF_HUB_DISABLE_PROGRESS_BARS"  # huggingface_hub reads it when it is imported
PYTHON_WARNINGS = "py.warnings"  # the logger that `captureWarnings` uses

# Limit of a warning that repeats.
MAX_REPEATS = 5  # per window
WINDOW_SECONDS = 60.0


def configure_logs(log_format: str, process_name: str, level: int | str = logging.WARNING) -> None:
    """Send all logs of this process through one handler. Call it before libraries are imported.

    With JSON, this includes output that would have another form: libraries with their own handlers, uncaught
    exceptions, and progress bars, which are turned off.
    """
    logging.basicConfig(handlers=[make_handler(log_format, process_name)], level=level, force=True)
    logging.captureWarnings(True)
    if log_format == "json":
        logging.setLoggerClass(RootHandlerLogger)
        os.environ.setdefault(NO_PROGRESS_BARS, "1")
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)
        sys.unraisablehook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def make_handler(log_format: str, process_name: str) -> logging.Handler:
    """Return a handler that writes to stderr. Each line names the process."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter(process_name) if log_format == "json" else HumanFormatter(process_name)
    )
    handler.addFilter(RepeatLimiter())
    return handler


def with_fields(**fields: Any) -> dict[str, Any]:
    """Return the `extra` argument of a log call: fields that a JSON log has beside the message."""
    return {"fields": fields}


class RootHandlerLogger(logging.Logger):
    """A logger that ignores added handlers and always propagates to the root logger's handler."""

    propagate = property(lambda self: True, lambda self, value: None)

    def addHandler(self, hdlr: logging.Handler) -> None:
        pass


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None
) -> None:
    if error is not None:
        logger.critical("uncaught exception", exc_info=(kind, error, traceback))


class HumanFormatter(logging.Formatter):
    def __init__(self, process_name: str) -> None:
        super().__init__(f"%(asctime)s {process_name}: %(message)s", "%Y-%m-%d %H:%M:%S")
        self.default_msec_format = "%s.%03d"


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object on one line."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process_name,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class RepeatLimiter(logging.Filter):
    """Passes the first `MAX_REPEATS` of a warning in each window, then reports how many were suppressed.

    Errors always pass: an error response may refer a client to the log entry with its request id.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[tuple[str, int], Window] = {}  # by `_place_of`: one per line of code

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        now, place = self._clock(), _place_of(record)
        window = self._windows.get(place)
        if window is None or now - window.began >= WINDOW_SECONDS:
            num_suppressed = 0 if window is None else window.num_suppressed
            window = self._windows[place] = Window(now)
            if num_suppressed:
                record.msg = f"{record.getMessage()} ({num_suppressed} similar warnings were suppressed)"
                record.args = ()
        window.num_logged += 1
        if window.num_logged <= MAX_REPEATS:
            return True
        window.num_suppressed += 1
        return False


def _place_of(record: logging.LogRecord) -> tuple[str, int]:
    """Return the line of code that logged. Python's warnings share one, so their text identifies them."""
    if record.name == PYTHON_WARNINGS:
        return record.getMessage(), 0
    return record.pathname, record.lineno


class Window:
    def __init__(self, began: float) -> None:
        self.began = began
        self.num_logged = 0
        self.num_suppressed = 0
