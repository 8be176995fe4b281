"""The list of a fleet on Ray: it survives the process that reads it."""

import asyncio
import sys
from pathlib import Path

import pytest

from octavo.membership import ray_addresses
from octavo.membership.address_source import AddressesUnavailable
from octavo.membership.addresses import parse_fleet
from patience import HANG_SECONDS

# Each run takes the next line of a file, and ends at once: as if the head of the cluster was lost.
FOLLOWER = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
first, _, rest = path.read_text().partition("\\n")
path.write_text(rest)
print(first) if first.startswith("10.") else sys.exit(first)
"""


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "lines"
    monkeypatch.setattr(ray_addresses, "FOLLOW", (sys.executable, "-c", FOLLOWER, str(path)))
    monkeypatch.setattr(ray_addresses, "RESTART_SECONDS", 0.01)
    monkeypatch.setattr(ray_addresses, "FIRST_LIST_SECONDS", HANG_SECONDS)
    return path


def test_the_last_list_remains_until_there_is_another(lines: Path) -> None:
    lines.write_text("10.0.0.2:7070,10.0.0.1:7070\n" + "the head is lost\n" * 3 + "10.0.0.3:7070\n")
    source = parse_fleet("ray:octavo")

    async def follow() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            assert await source.addresses() == ("10.0.0.1:7070", "10.0.0.2:7070")
            while (found := await source.addresses()) != ("10.0.0.3:7070",):
                assert found == ("10.0.0.1:7070", "10.0.0.2:7070")
                await asyncio.sleep(0.01)

    asyncio.run(follow())


def test_without_a_list_the_problem_is_shown(lines: Path) -> None:
    lines.write_text("there is no cluster\n")
    with pytest.raises(AddressesUnavailable, match="ray:octavo: there is no cluster"):
        asyncio.run(parse_fleet("ray:octavo").addresses())


def test_a_process_that_cannot_start_is_tried_again(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ray_addresses.FOLLOW
    monkeypatch.setattr(ray_addresses, "FOLLOW", ("/no/such/program",))
    lines.write_text("10.0.0.1:7070\n")
    source = parse_fleet("ray:octavo")

    async def follow() -> None:
        with pytest.raises(AddressesUnavailable, match="cannot ask the cluster"):
            await source.addresses()
        monkeypatch.setattr(ray_addresses, "FOLLOW", command)
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                try:
                    assert await source.addresses() == ("10.0.0.1:7070",)
                    return
                except AddressesUnavailable:
                    await asyncio.sleep(0.01)

    asyncio.run(follow())
