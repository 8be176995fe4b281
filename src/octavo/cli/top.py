"""`octavo top`: monitor a server's engine in the terminal."""

import argparse
import contextlib
import copy
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

from octavo.cli.invocation import Invocation
from octavo.errors import ConfigError, OctavoError

if TYPE_CHECKING:
    from octavo.cli.terminal import Terminal
    from octavo.top.connection import ViewConnection
    from octavo.top.history import History
    from octavo.top.paint import Glyphs
    from octavo.top.session import Session

USAGE = "top URL"
DESCRIPTION = """\
Monitor a server: its replicas, and the throughput, latency, KV blocks, steps, requests and prefix tree of one
engine.
Keys: q quits, p pauses, e m s r f t show a single panel, a shows all panels. n and b show the engine of the
next and the previous replica, and 0 lets the server choose one.
With --once, print one snapshot as text."""

DRAW_SECONDS = 0.1
ONCE_WIDTH = 120
ONCE_VIEWS = 3  # rates need two
ONCE_SECONDS = 30.0  # after which the snapshot shows what there is: an engine may load for minutes
ONCE_FLEETS = 2  # events about the replicas, if there are several; rates need two


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
    parser.add_argument(
        "--replica",
        metavar="NAME",
        default=None,
        help="replica whose engine is shown, such as r1 [the first that is usable]",
    )
    parser.add_argument("--once", action="store_true", help="print one snapshot as text and exit")
    parser.set_defaults(config=None)


def run(call: Invocation) -> int:
    from octavo.top.connection import ViewAddress, ViewConnection

    args, terminal = call.args, call.terminal
    if not 0.1 <= args.interval <= 10:
        raise ConfigError(f"--interval {args.interval}: give a number of seconds from 0.1 to 10")
    key = args.key_to_send or terminal.environ.get("OCTAVO_API_KEY") or None
    connection = ViewConnection(ViewAddress.of(args.url), key, args.interval, args.replica or None)
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

    history = History(chosen=connection.replica)
    try:
        read_once(connection, history)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
        raise OctavoError(f"cannot reach the server: {explain_error(error, connection.address)}") from error
    width = shutil.get_terminal_size((ONCE_WIDTH, 24)).columns
    colour = terminal.colour(terminal.stdout)
    for line in snapshot(history, width, glyphs_of(terminal)):
        terminal.write(rendered(line, width, colour=colour) + "\n")
    return 0


def read_once(connection: "ViewConnection", history: "History") -> None:
    """Read until the history has what a snapshot shows, or until there will be no view, or not soon."""
    from octavo.view import AwayEvent, FleetEvent, ViewEvent

    began, num_views, num_fleets = time.monotonic(), 0, 0
    with contextlib.closing(connection.events()) as events:
        for event in events:
            history.note(event)
            num_views += isinstance(event, ViewEvent)
            num_fleets += isinstance(event, FleetEvent)
            has_fleet = num_fleets >= ONCE_FLEETS or len(history.fleet.replicas) < 2
            if num_views >= ONCE_VIEWS and has_fleet:
                return
            if time.monotonic() - began > ONCE_SECONDS:
                return
            if isinstance(event, AwayEvent) and event.state in ("failed", "removed"):
                return


def watch(connection: "ViewConnection", terminal: "Terminal") -> int:
    """Draw the screen until `q`, Ctrl-C, a signal, or a `PermanentFailure` of the connection."""
    from octavo.top.layout import Shown, frame
    from octavo.top.screen import Screen
    from octavo.top.session import Session

    session, glyphs = Session(connection), glyphs_of(terminal)
    shown, paused = Shown.ALL, None
    signal.signal(signal.SIGINT, _interrupt)  # the parent process may have set it to be ignored
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    session.start()
    with Screen(terminal.stdin, terminal.stdout, colour=terminal.colour(terminal.stdout)) as screen:
        while True:
            session.take_updates()
            history = paused or session.history
            screen.draw(frame(history, *screen.size, glyphs, shown, paused=paused is not None))
            key = screen.key(DRAW_SECONDS)
            while not key and not session.has_updates and not screen.has_resized:
                key = screen.key(DRAW_SECONDS)
            if key in ("q", "Q", "\x04"):
                return 0
            if key:
                session.history.dismiss_notice()
            if key in ("p", " "):
                paused = copy.deepcopy(session.history) if paused is None else None
            elif key in set(Shown):
                shown = Shown(key)
            elif choose_replica(session, key):
                paused = None


def choose_replica(session: "Session", key: str) -> bool:
    """Change the replica whose engine is shown, if the key does that. Return whether it does."""
    if key == "n":
        session.choose_neighbour(1)
    elif key == "b":
        session.choose_neighbour(-1)
    elif key == "0":
        session.choose(None)
    else:
        return False
    return True


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
