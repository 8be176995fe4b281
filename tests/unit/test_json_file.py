"""The reader of text and JSON files."""

import os
from pathlib import Path

import pytest

from octavo import json_file
from octavo.errors import CheckpointError
from octavo.json_file import read_json_object


def test_objects_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"é": [1, null]}', encoding="utf-8")
    assert read_json_object(path) == {"é": [1, None]}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b"[]", "JSON object"),
        (b'{"a": "\xff"}', r"not UTF-8 text \(byte 7\)"),
    ],
)
def test_damaged_files_are_explained(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"a\.json.*{complaint}"):
        read_json_object(path)


def test_paths_that_are_not_regular_files_are_rejected_immediately(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, complaint in (("pipe", "regular file"), ("absent", "No such file"), (".", "regular file")):
        with pytest.raises(CheckpointError, match=complaint):
            read_json_object(tmp_path / name)


def test_files_above_the_size_limit_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_file, "MAX_FILE_BYTES", 100)
    path = tmp_path / "a.json"
    path.write_text("{}" + " " * 98)
    assert read_json_object(path) == {}
    path.write_text("{}" + " " * 99)
    with pytest.raises(CheckpointError, match="larger than the limit of 100 bytes"):
        read_json_object(path)
