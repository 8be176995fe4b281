"""Whether another engine fits in memory is decided before it is started."""

from pathlib import Path

import msgspec
import pytest

from data.engine_facts import IDLE_STATS, engine_facts
from octavo.errors import FleetError
from octavo.membership import room

MIB = 1 << 20
FACTS = engine_facts(device="cpu", kv_bytes=1000 * MIB, weight_bytes={"float32": 300 * MIB})


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one engine: 200 MiB of its own, and 300 MiB of mapped weights."""
    monkeypatch.setattr(room, "PROC", tmp_path)
    status = tmp_path / "7" / "status"
    status.parent.mkdir()
    status.write_text(f"Name:\tpython\nRssAnon:\t{200 << 10} kB\nRssFile:\t{900 << 10} kB\n")
    return tmp_path


@pytest.mark.parametrize(
    ("num_used", "num_starting", "needed"),
    [
        # 1000 MiB of KV and 200 MiB beside it. The other engine has not used its own 1000 MiB yet.
        (0, 0, 1200 + 1000),
        # A tenth of its blocks are filled, so 100 of its 200 MiB are KV blocks.
        (100, 0, 1100 + 900),
        (100, 1, 2 * 1100 + 900),  # one that is starting will need as much
    ],
)
def test_memory_that_engines_have_not_used_yet_is_not_free(
    machine: Path, monkeypatch: pytest.MonkeyPatch, num_used: int, num_starting: int, needed: int
) -> None:
    mapped: list[int] = []
    free = (needed - 1) * MIB

    def free_memory(num_bytes: int) -> int:
        mapped.append(num_bytes)
        return free

    monkeypatch.setattr(room, "free_memory", free_memory)
    engines = [(7, msgspec.structs.replace(IDLE_STATS, blocks_free=1000 - num_used))]
    with pytest.raises(FleetError, match=r"restart the server with a smaller --kv-memory"):
        room.check_room(FACTS, engines, num_starting)
    free = needed * MIB
    room.check_room(FACTS, engines, num_starting)
    assert mapped == [300 * MIB] * 2, "the weights, and not the libraries"


def test_memory_of_other_devices_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda mapped: 0)
    room.check_room(msgspec.structs.replace(FACTS, device="cuda"), [(7, IDLE_STATS)], 0)
