"""The page that an engine stamps, and the parent reads while the engine is too busy to answer."""

import subprocess
import sys
import time
from pathlib import Path

from octavo.link.status_page import MOST_ID_BYTES, PATIENCE_STARTING, Phase, StatusPage


def test_a_new_page_is_that_of_an_engine_that_starts(tmp_path: Path) -> None:
    before = time.monotonic()
    StatusPage.create(tmp_path / "page")
    status = StatusPage.open(tmp_path / "page").read()
    assert (status.phase, status.done, status.total) == (Phase.STARTING, 0, 0)
    assert status.patience == PATIENCE_STARTING
    assert before <= status.stamp <= time.monotonic()


def test_a_stamp_is_seen_through_every_other_mapping(tmp_path: Path) -> None:
    StatusPage.create(tmp_path / "page")
    writer, reader = StatusPage.open(tmp_path / "page"), StatusPage.open(tmp_path / "page")
    writer.stamp(Phase.LOADING, 3, 7, patience=1.5)
    status = reader.read()
    assert (status.phase, status.done, status.total, status.patience) == (Phase.LOADING, 3, 7, 1.5)


def test_a_name_is_there_whole_or_not_at_all_until_the_next_stamp(tmp_path: Path) -> None:
    StatusPage.create(tmp_path / "page")
    page = StatusPage.open(tmp_path / "page")
    assert page.read().request_id == ""
    longest = "é" * (MOST_ID_BYTES // 2)
    for name, shown in (("r1", "r1"), (longest, longest), (longest + "x", "")):
        page.stamp(Phase.SERVING, request_id=name)
        assert page.read().request_id == shown
        page.stamp(Phase.SERVING)
        assert page.read().request_id == ""


def test_a_stamp_of_another_process_is_on_our_clock(tmp_path: Path) -> None:
    StatusPage.create(tmp_path / "page")
    reader = StatusPage.open(tmp_path / "page")
    before = time.monotonic()
    code = (
        "import sys; from pathlib import Path; from octavo.link.status_page import Phase, StatusPage;"
        " StatusPage.open(Path(sys.argv[1])).stamp(Phase.SERVING)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "page")], check=True)
    assert before <= reader.read().stamp <= time.monotonic()
    assert reader.read().phase is Phase.SERVING
