"""Notifications for a service manager such as systemd (the sd_notify protocol)."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from typing import Self

logger = logging.getLogger(__name__)

RESEND_SECONDS = 1.0  # between two attempts to send what could not be sent
SEND_SECONDS = 0.1  # a manager that does not read blocks the event loop no longer than this
LOADING_SECONDS = 120  # start timeout to request, renewed well before it expires
RECHECKS = 10  # how often a server that is not live is checked in the time between two notifications


class Notifier:
    """Owned by the event loop. Does nothing without a service manager."""

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        """`watchdog_seconds`: silence after which the manager restarts the service; None: no watchdog."""
        self._socket: socket.socket | None = None
        self._address = address or ""
        self._watchdog_seconds = watchdog_seconds
        self._is_loading = True
        self._unsent: dict[str, str] = {}  # newest value of each variable that could not be sent yet
        self._has_failed = False
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Self:
        """Create a notifier from environment variables, and remove them so that no child sees them."""
        address = environ.pop("NOTIFY_SOCKET", "")
        microseconds = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        if not address.startswith(("/", "@")):
            return cls(None)
        is_watched = pid in ("", str(os.getpid())) and microseconds.isdecimal() and int(microseconds) > 0
        address = f"\0{address[1:]}" if address.startswith("@") else address
        return cls(address, int(microseconds) / 1e6 if is_watched else None)

    def loading(self) -> None:
        self._send(STATUS="loading the model", EXTEND_TIMEOUT_USEC=f"{LOADING_SECONDS * 1_000_000}")

    def ready(self) -> None:
        self._is_loading = False
        self._send(READY="1", STATUS="serving")

    def report(self, name: str, value: str) -> bool:
        """Send a variable of our own, whose name begins with X_. Return whether the manager has received it,
        or will read it: False if there is none."""
        self._send(**{name: value})
        return self._socket is not None and not self._unsent

    def stopping(self) -> None:
        self._is_loading = False
        self._send(STOPPING="1", STATUS="finishing in-flight requests")

    async def keep_notifying(self, is_live: Callable[[], bool]) -> None:
        """Notify the manager until cancelled.

        Runs on the event loop, so a blocked loop sends nothing. A server that is not live is checked again
        soon: a short interruption must not cost half of the watchdog timeout.
        """
        while self._socket is not None:
            live = is_live()
            if live and self._is_loading:
                self.loading()
            if live and self._watchdog_seconds is not None:
                self._send(WATCHDOG="1")
            seconds = min(self._watchdog_seconds or LOADING_SECONDS, LOADING_SECONDS) / 2
            await self._pause(seconds if live else seconds / RECHECKS)

    async def _pause(self, seconds: float) -> None:
        """Sleep. Meanwhile, send again what could not be sent: a manager may start later than the server."""
        deadline = time.monotonic() + seconds
        while True:
            await asyncio.sleep(min(RESEND_SECONDS, max(0, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                return
            self._unsent.pop("WATCHDOG", None)  # the server may not be live any more
            if self._unsent:
                self._send(0)

    def close(self) -> None:
        if self._unsent:
            self._send()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, timeout: float = SEND_SECONDS, /, **assignments: str) -> None:
        if self._socket is None:
            return
        self._unsent |= assignments
        message = "\n".join(f"{name}={value}" for name, value in self._unsent.items())
        try:
            self._socket.settimeout(timeout)
            self._socket.sendto(message.encode(), self._address)
            self._unsent.clear()
        except OSError as error:
            if not self._has_failed:
                logger.debug("cannot notify the service manager: %s", error)
            self._has_failed = True
