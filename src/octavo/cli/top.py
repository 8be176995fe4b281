"""`octavo top`: a server's engine at work, in a terminal."""

import argparse
import copy
import queue
import shutil
import signal
from typing import TYPE_CHECKING, Any

from octavo.cli.invocation import Invocation
from octavo.errors import ConfigError, OctavoError

if TYPE_CHECKING:
    from octavo.cli.terminal import Terminal
    from octavo.top.connection import Connection
    from octavo.top.history import History
    from octavo.top.paint import Glyphs

USAGE = "top URL"
DESCRIPTION = """\
Show what a server's engine does: throughput and latency, KV pages, steps, requests, the prefix tree.
Keys: q ends it, p pauses, m s r f t show one part alone, a all of them.
With --once, one picture is printed as text."""

DRAW_SECONDS = 0.1
ONCE_WIDTH = 120
ONCE_VIEWS = 3  # rates need two


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="such as http://127.0.0.1:8000")
    # A name of its own: it is the other server's, not an option of this one.
    parser.add_argument(
        "--api-key", metavar="K", dest="key_to_send", default=None, help="key to send [$OCTAVO_API_KEY]"
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=float,
        default=0.25,
        help="seconds between two views, 0.1 to 10 [0.25]",
    )
    parser.add_argument("--once", action="store_true", help="print one picture as text, and end")
    parser.set_defaults(config=None)


def run(call: Invocation) -> int:
    from octavo.top.connection import Address, Connection

    args, terminal = call.args, call.terminal
    if not 0.1 <= args.interval <= 10:
        raise ConfigError(f"--interval {args.interval}: give a number of seconds from 0.1 to 10")
    key = args.key_to_send or terminal.environ.get("OCTAVO_API_KEY") or None
    connection = Connection(Address.of(args.url), key, args.interval)
    if args.once:
        return print_once(connection, terminal)
    if not terminal.is_interactive:
        raise ConfigError("octavo top needs a terminal; for a script, use --once")
    return watch(connection, terminal)


def glyphs_of(terminal: "Terminal") -> "Glyphs":
    from octavo.top.paint import ASCII, UNICODE

    encoding = (getattr(terminal.stdout, "encoding", None) or "utf-8").lower()
    return UNICODE if encoding.startswith("utf") else ASCII


def print_once(connection: "Connection", terminal: "Terminal") -> int:
    import http.client

    import msgspec

    from octavo.top.connection import in_words
    from octavo.top.history import History
    from octavo.top.layout import snapshot
    from octavo.top.paint import rendered

    history = History()
    try:
        for event in connection.events(ONCE_VIEWS):
            history.note(event)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
        raise OctavoError(f"cannot reach the server: {in_words(error, connection.address)}") from error
    width = shutil.get_terminal_size((ONCE_WIDTH, 24)).columns
    colour = terminal.colour(terminal.stdout)
    for line in snapshot(history, width, glyphs_of(terminal)):
        terminal.write(rendered(line, width, colour=colour) + "\n")
    return 0


def watch(connection: "Connection", terminal: "Terminal") -> int:
    """Until `q`, Ctrl-C, a signal, or a server that will not have us."""
    from octavo.top.history import History
    from octavo.top.layout import Shown, frame
    from octavo.top.screen import Screen

    history, glyphs = History(), glyphs_of(terminal)
    shown, paused = Shown.ALL, None
    signal.signal(signal.SIGINT, _interrupt)  # whoever started us may have been told to ignore it
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    connection.start()
    with Screen(terminal.stdin, terminal.stdout, colour=terminal.colour(terminal.stdout)) as screen:
        while True:
            take_news(connection, history)
            screen.draw(frame(paused or history, *screen.size, glyphs, shown, paused=paused is not None))
            key = screen.key(DRAW_SECONDS)
            while not key and connection.news.empty() and not screen.has_resized:
                key = screen.key(DRAW_SECONDS)
            if key in ("q", "Q", "\x04"):
                return 0
            if key in ("p", " "):
                paused = copy.deepcopy(history) if paused is None else None
            elif key in set(Shown):
                shown = Shown(key)


def take_news(connection: "Connection", history: "History") -> None:
    """All that has come. Raises what the server refuses us with."""
    while True:
        try:
            news = connection.news.get_nowait()
        except queue.Empty:
            return
        if isinstance(news, Exception):
            raise news
        history.note(news)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
