"""The heartbeat that an engine writes and its parent reads while the engine is too busy to answer."""

import subprocess
import sys
import time
from pathlib import Path

from octavo.link.heartbeat import MAX_ID_BYTES, STARTING_TIMEOUT, HeartbeatFile, Phase


def test_a_new_heartbeat_means_the_engine_is_starting(tmp_path: Path) -> None:
    before = time.monotonic()
    HeartbeatFile.create(tmp_path / "heartbeat")
    status = HeartbeatFile.open(tmp_path / "heartbeat").read()
    assert (status.phase, status.done, status.total) == (Phase.STARTING, 0, 0)
    assert status.timeout == STARTING_TIMEOUT
    assert before <= status.written_at <= time.monotonic()


def test_a_heartbeat_is_visible_through_every_mapping(tmp_path: Path) -> None:
    HeartbeatFile.create(tmp_path / "heartbeat")
    writer, reader = HeartbeatFile.open(tmp_path / "heartbeat"), HeartbeatFile.open(tmp_path / "heartbeat")
    writer.write(Phase.LOADING, 3, 7, timeout=1.5)
    status = reader.read()
    assert (status.phase, status.done, status.total, status.timeout) == (Phase.LOADING, 3, 7, 1.5)


def test_a_request_id_is_stored_completely_or_not_at_all(tmp_path: Path) -> None:
    HeartbeatFile.create(tmp_path / "heartbeat")
    heartbeat = HeartbeatFile.open(tmp_path / "heartbeat")
    assert heartbeat.read().request_id == ""
    longest = "é" * (MAX_ID_BYTES // 2)
    for name, shown in (("r1", "r1"), (longest, longest), (longest + "x", "")):
        heartbeat.write(Phase.SERVING, request_id=name)
        assert heartbeat.read().request_id == shown
        heartbeat.write(Phase.SERVING)
        assert heartbeat.read().request_id == ""


def test_heartbeats_of_other_processes_use_the_same_clock(tmp_path: Path) -> None:
    HeartbeatFile.create(tmp_path / "heartbeat")
    reader = HeartbeatFile.open(tmp_path / "heartbeat")
    before = time.monotonic()
    code = (
        "import sys; from pathlib import Path; from octavo.link.heartbeat import Phase, HeartbeatFile;"
        " HeartbeatFile.open(Path(sys.argv[1])).write(Phase.SERVING)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "heartbeat")], check=True)
    assert before <= reader.read().written_at <= time.monotonic()
    assert reader.read().phase is Phase.SERVING
