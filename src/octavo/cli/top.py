"""`octavo top`: monitor a server's engine in the terminal."""

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
    from octavo.top.connection import ViewConnection
    from octavo.top.history import History
    from octavo.top.paint import Glyphs

USAGE = "top URL"
DESCRIPTION = """\
Monitor a server's engine: throughput, latency, KV blocks, steps, requests and the prefix tree.
Keys: q quits, p pauses, m s r f t show a single panel, a shows all panels.
With --once, print one snapshot as text."""

DRAW_SECONDS = 0.1
ONCE_WIDTH = 120
ONCE_VIEWS = 3  # rates need two


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="server address, such as http://127.0.0.1:8000")
    # A separate `dest` name: the key is for the target server and is not an option of this process.
    parser.add_argument(
        "--api-key", metavar="K", dest="key_to_send", default=None, help="API key to send [$OCTAVO_API_KEY]"
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=float,
        default=0.25,
        help="seconds between updates, from 0.1 to 10 [0.25]",
    )
    parser.add_argument("--once", action="store_true", help="print one snapshot as text and exit")
    parser.set_defaults(config=None)


def run(call: Invocation) -> int:
    from octavo.top.connection import ViewAddress, ViewConnection

    args, terminal = call.args, call.terminal
    if not 0.1 <= args.interval <= 10:
        raise ConfigError(f"--interval {args.interval}: give a number of seconds from 0.1 to 10")
    key = args.key_to_send or terminal.environ.get("OCTAVO_API_KEY") or None
    connection = ViewConnection(ViewAddress.of(args.url), key, args.interval)
    if args.once:
        return print_once(connection, terminal)
    if not terminal.is_interactive:
        raise ConfigError("octavo top needs a terminal; use --once in scripts")
    return watch(connection, terminal)


def glyphs_of(terminal: "Terminal") -> "Glyphs":
    from octavo.top.paint import ASCII, UNICODE

    encoding = (getattr(terminal.stdout, "encoding", None) or "utf-8").lower()
    return UNICODE if encoding.startswith("utf") else ASCII


def print_once(connection: "ViewConnection", terminal: "Terminal") -> int:
    import http.client

    import msgspec

    from octavo.top.connection import explain_error
    from octavo.top.history import History
    from octavo.top.layout import snapshot
    from octavo.top.paint import rendered

    history = History()
    try:
        for event in connection.events(ONCE_VIEWS):
            history.note(event)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
        raise OctavoError(f"cannot reach the server: {explain_error(error, connection.address)}") from error
    width = shutil.get_terminal_size((ONCE_WIDTH, 24)).columns
    colour = terminal.colour(terminal.stdout)
    for line in snapshot(history, width, glyphs_of(terminal)):
        terminal.write(rendered(line, width, colour=colour) + "\n")
    return 0


def watch(connection: "ViewConnection", terminal: "Terminal") -> int:
    """Draw the screen until `q`, Ctrl-C, a signal, or a `PermanentFailure` of the connection."""
    from octavo.top.history import History
    from octavo.top.layout import Shown, frame
    from octavo.top.screen import Screen

    history, glyphs = History(), glyphs_of(terminal)
    shown, paused = Shown.ALL, None
    signal.signal(signal.SIGINT, _interrupt)  # the parent process may have set it to be ignored
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    connection.start()
    with Screen(terminal.stdin, terminal.stdout, colour=terminal.colour(terminal.stdout)) as screen:
        while True:
            take_updates(connection, history)
            screen.draw(frame(paused or history, *screen.size, glyphs, shown, paused=paused is not None))
            key = screen.key(DRAW_SECONDS)
            while not key and connection.updates.empty() and not screen.has_resized:
                key = screen.key(DRAW_SECONDS)
            if key in ("q", "Q", "\x04"):
                return 0
            if key in ("p", " "):
                paused = copy.deepcopy(history) if paused is None else None
            elif key in set(Shown):
                shown = Shown(key)


def take_updates(connection: "ViewConnection", history: "History") -> None:
    """Move all received updates to the history. Raise a `PermanentFailure` of the connection."""
    while True:
        try:
            update = connection.updates.get_nowait()
        except queue.Empty:
            return
        if isinstance(update, Exception):
            raise update
        history.note(update)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
