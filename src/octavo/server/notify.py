"""What a service manager such as systemd is told of the server (the protocol of sd_notify)."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, MutableMapping
from typing import Self

logger = logging.getLogger(__name__)

SEND_SECONDS = 0.1  # a manager that does not read costs the event loop no more than this
LOADING_SECONDS = 120  # that a start may take from now on, told again well before they are over
LOOKS = 10  # at a server that is not live, where a live one would be looked at once


class Notifier:
    """Owned by the event loop. Without a service manager that listens, it does nothing."""

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        """`watchdog_seconds`: whoever is silent for so long is restarted; None: nobody looks."""
        self._socket: socket.socket | None = None
        self._address = address or ""
        self._watchdog_seconds = watchdog_seconds
        self._is_loading = True
        self._untold: dict[str, str] = {}  # what could not be sent yet, by name: the newest value of each
        self._has_failed = False
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(SEND_SECONDS)

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Self:
        """Takes the variables away: they are for this process, and not for those that it starts."""
        address = environ.pop("NOTIFY_SOCKET", "")
        microseconds = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        if not address.startswith(("/", "@")):
            return cls(None)
        is_watched = pid in ("", str(os.getpid())) and microseconds.isdecimal() and int(microseconds) > 0
        address = f"\0{address[1:]}" if address.startswith("@") else address
        return cls(address, int(microseconds) / 1e6 if is_watched else None)

    def loading(self) -> None:
        self._tell(STATUS="loading the model", EXTEND_TIMEOUT_USEC=f"{LOADING_SECONDS * 1_000_000}")

    def ready(self) -> None:
        self._is_loading = False
        self._tell(READY="1", STATUS="serving")

    def stopping(self) -> None:
        self._is_loading = False
        self._tell(STOPPING="1", STATUS="finishing the answers under way")

    async def keep_telling(self, is_live: Callable[[], bool]) -> None:
        """For ever, on the event loop: where that is stuck, nothing is told. A server that is not live for a
        moment is looked at again soon: else the moment would cost it half of the watchdog's patience."""
        while self._socket is not None:
            live = is_live()
            if live and self._is_loading:
                self.loading()
            if live and self._watchdog_seconds is not None:
                self._tell(WATCHDOG="1")
            seconds = min(self._watchdog_seconds or LOADING_SECONDS, LOADING_SECONDS) / 2
            await asyncio.sleep(seconds if live else seconds / LOOKS)

    def close(self) -> None:
        if self._untold:
            self._tell()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell(self, **assignments: str) -> None:
        if self._socket is None:
            return
        self._untold |= assignments
        message = "\n".join(f"{name}={value}" for name, value in self._untold.items())
        try:
            self._socket.sendto(message.encode(), self._address)
            self._untold.clear()
        except OSError as error:
            if not self._has_failed:
                logger.debug("the service manager cannot be told: %s", error)
            self._has_failed = True
