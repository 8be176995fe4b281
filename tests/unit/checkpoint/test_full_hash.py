"""The full hash of a checkpoint covers every byte and is recomputed if a file may have changed."""

import os
from pathlib import Path

import pytest

from octavo.checkpoint import full_hash as module
from octavo.checkpoint.full_hash import full_hash

LONG_AGO = 1_600_000_000 * 10**9


class Weights:
    """A file whose reads are counted."""

    def __init__(self, folder: Path, content: bytes = b"weights" * 1000) -> None:
        self.path = folder / "weights"
        self.notes = folder / "notes" / "hashes"
        self.path.write_bytes(content)
        self.num_read = 0

    def hash(self) -> str:
        self.num_read = 0

        def count(done: int) -> None:
            self.num_read = done

        return full_hash([self.path], self.notes, count)


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    monkeypatch.setattr(module, "SETTLED_NS", 0)
    return Weights(tmp_path)


def test_an_unchanged_file_is_not_read_again(weights: Weights) -> None:
    first = weights.hash()
    assert weights.num_read == 7000
    assert weights.hash() == first
    assert weights.num_read == 0


def test_every_byte_changes_the_hash(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 64)  # many pieces, the last one short
    seen = {weights.hash()}
    content = bytearray(weights.path.read_bytes())
    for position in (0, 63, 64, 3500, len(content) - 1):
        changed = content.copy()
        changed[position] ^= 1
        weights.path.write_bytes(changed)
        seen.add(weights.hash())
    swapped = content[64:128] + content[:64] + content[128:]
    weights.path.write_bytes(swapped)
    seen.add(weights.hash())
    assert len(seen) == 7


def test_a_newer_file_of_the_same_size_is_read_again(weights: Weights) -> None:
    first = weights.hash()
    weights.path.write_bytes(b"WEIGHTS" * 1000)
    assert weights.hash() != first
    assert weights.num_read == 7000


def test_a_change_with_a_restored_mtime_is_detected(weights: Weights) -> None:
    """The inode change time (ctime) shows it, which no program can set."""
    os.utime(weights.path, ns=(LONG_AGO, LONG_AGO))
    first = weights.hash()
    weights.path.write_bytes(b"WEIGHTS" * 1000)
    os.utime(weights.path, ns=(LONG_AGO, LONG_AGO))
    assert weights.hash() != first


def test_a_replaced_file_is_read_again(weights: Weights, tmp_path: Path) -> None:
    first = weights.hash()
    other = tmp_path / "other"
    other.write_bytes(b"WEIGHTS" * 1000)
    stat = weights.path.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(weights.path)
    assert weights.hash() != first


def test_a_longer_file_is_read_again(weights: Weights) -> None:
    first = weights.hash()
    with weights.path.open("ab") as file:
        file.write(b"\0")
    assert weights.hash() != first
    assert weights.num_read == 7001


def test_the_hash_of_a_recently_written_file_is_not_saved(tmp_path: Path) -> None:
    """A later change could have the same time."""
    weights = Weights(tmp_path)
    weights.hash()
    weights.hash()
    assert weights.num_read == 7000


def test_a_broken_saved_hash_is_ignored(weights: Weights) -> None:
    first = weights.hash()
    (note,) = weights.notes.iterdir()
    note.write_bytes(b'{"state": 1}')
    assert weights.hash() == first
    assert weights.num_read == 7000


def test_hashes_that_cannot_be_saved_are_computed_again(weights: Weights) -> None:
    weights.notes.parent.write_bytes(b"a file where the folder should be")
    assert weights.hash() == weights.hash()
    assert weights.num_read == 7000


def test_the_hash_of_two_files_covers_content_and_order(tmp_path: Path) -> None:
    contents = {"a": b"1", "b": b"2", "c": b"12", "d": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)

    def of(names: str) -> str:
        return full_hash([tmp_path / name for name in names], tmp_path / "notes")

    assert len({of("ab"), of("ba"), of("c"), of("cd"), of("dc")}) == 5
    (tmp_path / "e").write_bytes(b"1")
    assert of("eb") == of("ab"), "independent of names and paths"
