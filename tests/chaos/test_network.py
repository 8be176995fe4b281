"""The short form of tests/chaos/network.py: each kind of disturbance happens once."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.network import KINDS, run_chaos
from patience import HANG_SECONDS

SHORT: dict[str, Any] = {
    "streams": 40,
    "events": len(KINDS),
    "at_once": 16,
    "tokens": 200,
    "fault_seconds": (1.0, 3.0, 7.0),
}

pytestmark = pytest.mark.xdist_group("network")


def why_impossible() -> str:
    """Return why this machine cannot run the test; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    name = f"octavo-{os.getpid()}-probe"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
        rule = ["ip", "netns", "exec", name, "iptables", "-w", "-A", "INPUT", "-m", "statistic"]
        rule += ["--mode", "random", "--probability", "0.3", "-j", "DROP"]
        ruled = subprocess.run(rule, capture_output=True, text=True, check=False)
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    if made.returncode != 0:
        return f"`ip netns` does not work: {made.stderr.strip()}"
    return f"iptables does not work in a namespace: {ruled.stderr.strip()}" if ruled.returncode != 0 else ""


def test_streams_survive_a_disturbed_network(
    tiny_checkpoint: Path, record_property: Callable[[str, object], None]
) -> None:
    reason = why_impossible()
    if reason:
        pytest.skip(reason)

    async def bounded() -> None:
        async with asyncio.timeout(4 * HANG_SECONDS):
            report = await run_chaos(str(tiny_checkpoint), **SHORT)
        record_property("load", f"two machines, two front ends: {report}")
        assert (report.num_lost, report.num_different, report.problems) == (0, 0, []), str(report)
        assert report.num_streams >= 40
        assert report.events == dict.fromkeys(KINDS, 1)
        assert report.num_moves > 0

    asyncio.run(bounded())
