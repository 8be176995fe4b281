"""The tie between a process of ours and the one that started it."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def live_and_die_with(parent: int) -> None:
    """Only the parent ends this process, and it does not outlive the parent, not even after kill -9."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        sys.exit(0)
