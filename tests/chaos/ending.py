"""How tests end a program that they have started."""

import asyncio
import re
import signal
import subprocess
from pathlib import Path

from patience import HANG_SECONDS


async def end(process: subprocess.Popen[bytes], number: int) -> int:
    """Send a signal, and return the exit code.

    SIGTERM is sent when the program handles it. One that has just been started does not, and dies of it
    without a shutdown.
    """
    if number == signal.SIGTERM:
        async with asyncio.timeout(HANG_SECONDS):
            while process.poll() is None and not _handles(process.pid, number):
                await asyncio.sleep(0.01)
    process.send_signal(number)
    return await asyncio.to_thread(process.wait, HANG_SECONDS)


def _handles(pid: int, number: int) -> bool:
    """Whether a process catches a signal, or keeps it pending until it does."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = re.findall(r"^Sig(?:Blk|Cgt):\s+(\w+)$", status, re.M)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
