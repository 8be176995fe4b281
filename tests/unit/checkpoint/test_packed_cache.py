"""The cache of packed weights: reused, verified, rebuilt if damaged, bounded; failures never stop a load."""

import ctypes
import errno
import logging
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.checkpoint import packed_cache, packed_file
from octavo.checkpoint.packed_cache import PackedCache, default_folder
from octavo.checkpoint.packed_file import DATA_START, PIECE_BYTES, PackedMemory
from octavo.errors import CheckpointError
from patience import HANG_SECONDS

KEY, OTHER = "a" * 64, "b" * 64
SIZE = PIECE_BYTES + 5000  # two pieces


def checksum(address: int, num_bytes: int) -> int:
    return zlib.crc32(ctypes.string_at(address, num_bytes))


def cache_in(folder: Path, max_bytes: int = 10 * SIZE) -> PackedCache:
    return PackedCache(folder, max_bytes, checksum, layout_version=1)


class Packer:
    """Writes the same bytes on every call and counts the calls."""

    def __init__(self, fill: int = 7) -> None:
        self.fill = fill
        self.calls = 0

    def __call__(self, memory: PackedMemory) -> None:
        self.calls += 1
        assert ctypes.string_at(memory.address, memory.num_bytes) == bytes(memory.num_bytes), "not zeroed"
        ctypes.memset(memory.address, self.fill, memory.num_bytes - 1)


def content(memory: PackedMemory | None) -> bytes:
    assert memory is not None
    return ctypes.string_at(memory.address, memory.num_bytes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "packed"


def test_packed_weights_are_mapped_on_later_loads(folder: Path) -> None:
    pack = Packer()
    first = content(cache_in(folder).load(KEY, "m", SIZE, pack))
    assert first == b"\7" * (SIZE - 1) + b"\0"
    second = cache_in(folder).load(KEY, "m", SIZE, pack)
    assert content(second) == first
    assert pack.calls == 1
    assert [path.name for path in folder.iterdir()] == [f"{KEY}.packed"], "no temporary files, no locks"


def test_the_cache_is_private_to_its_user(folder: Path) -> None:
    cache_in(folder).load(KEY, "m", SIZE, Packer())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / f"{KEY}.packed").stat().st_mode & 0o777 == 0o600


def test_data_is_aligned_to_huge_pages_and_memory_to_pages(folder: Path) -> None:
    memory = cache_in(folder).load(KEY, "m", SIZE, Packer())
    assert memory is not None
    assert DATA_START % (2 << 20) == 0
    assert memory.address % 4096 == 0


def test_mapped_weights_are_read_only(folder: Path) -> None:
    """An accidental write would change the weights of other engines."""
    script = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "import ctypes, pathlib\n"
        "from unit.checkpoint.test_packed_cache import *\n"
        "memory = cache_in(pathlib.Path(sys.argv[1])).load(KEY, 'm', SIZE, Packer())\n"
        "ctypes.memset(memory.address, 1, 1)\n"
    )
    command = [sys.executable, "-c", script, str(folder), *sys.path]
    ended = subprocess.run(command, check=False, timeout=HANG_SECONDS)
    assert ended.returncode < 0


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def cut_to_header(path: Path) -> None:
    os.truncate(path, DATA_START)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lengthen(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 1)


def altered_at(offset: int) -> Callable[[Path], None]:
    def alter(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    return alter


def of_another_key(path: Path) -> None:
    cache_in(path.parent).load(OTHER, "m", SIZE, Packer(9))
    (path.parent / f"{OTHER}.packed").replace(path)


def of_another_size(path: Path) -> None:
    path.unlink()
    cache_in(path.parent).load(KEY, "m", SIZE + 1, Packer(9))


@pytest.mark.parametrize(
    "harm",
    [
        *(cut, cut_to_header, empty, lengthen, of_another_key, of_another_size),
        *(altered_at(offset) for offset in (0, 17, 25, 40, DATA_START, DATA_START + PIECE_BYTES, -1)),
    ],
)
def test_a_broken_file_is_deleted_and_packed_again(
    harm: Callable[[Path], None], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack = Packer()
    cache_in(folder).load(KEY, "m", SIZE, pack)
    harm(folder / f"{KEY}.packed")
    with caplog.at_level(logging.WARNING):
        again = cache_in(folder).load(KEY, "m", SIZE, pack)
    assert content(again) == b"\7" * (SIZE - 1) + b"\0"
    assert pack.calls == 2
    assert [record.message for record in caplog.records if "deleting and repacking" in record.message]


def test_an_invalid_header_with_a_valid_checksum_is_rejected(folder: Path) -> None:
    """The JSON is not a valid header; the file may have been tampered with."""
    cache_in(folder).load(KEY, "m", SIZE, Packer())
    header = b'{"key": 5}'
    array = (ctypes.c_char * len(header)).from_buffer_copy(header)
    total = checksum(ctypes.addressof(array), len(header))
    with (folder / f"{KEY}.packed").open("r+b") as file:
        file.write(packed_file.PROLOGUE.pack(packed_file.MAGIC, len(header), total) + header)
    pack = Packer()
    cache_in(folder).load(KEY, "m", SIZE, pack)
    assert pack.calls == 1


def test_a_full_disk_is_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    pack = Packer()
    assert cache_in(folder).load(KEY, "m", SIZE, pack) is None
    assert pack.calls == 0
    assert [record.message for record in caplog.records] == [
        f"packed weights are not cached in {folder}: No space left on device"
    ]
    assert not list(folder.glob("*.tmp"))


def test_a_read_only_folder_is_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Existing files are still used."""
    cache_in(folder).load(KEY, "m", SIZE, Packer())
    really_open = os.open

    def open_for_reading(path: Path, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really_open(path, flags, *rest)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", open_for_reading)
    monkeypatch.setattr(os, "utime", refuse)
    pack = Packer()
    assert content(cache_in(folder).load(KEY, "m", SIZE, pack))[:1] == b"\7"
    assert not caplog.records
    assert cache_in(folder).load(OTHER, "m", SIZE, pack) is None
    assert [record.message for record in caplog.records] == [
        f"packed weights are not cached in {folder}: Permission denied"
    ]
    assert pack.calls == 0


def test_a_folder_that_cannot_be_created_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert cache_in(tmp_path / "file" / "packed").load(KEY, "m", SIZE, Packer()) is None
    assert len(caplog.records) == 1


def test_an_error_while_packing_leaves_no_files(folder: Path) -> None:
    def fail(memory: PackedMemory) -> None:
        raise CheckpointError("damaged")

    with pytest.raises(CheckpointError, match="damaged"):
        cache_in(folder).load(KEY, "m", SIZE, fail)
    assert not list(folder.glob("*.tmp")) + list(folder.glob("*.packed"))
    assert cache_in(folder).load(KEY, "m", SIZE, Packer()) is not None, "the lock is free again"


def test_least_recently_used_files_are_evicted_unless_in_use(folder: Path) -> None:
    small = 4096
    cache = cache_in(folder, max_bytes=3 * (DATA_START + small))
    keys = [letter * 64 for letter in "cdef"]

    def age(key: str, seconds: int) -> None:
        moment = time.time() - seconds
        os.utime(folder / f"{key}.packed", (moment, moment))

    def there() -> set[str]:
        return {path.name[0] for path in folder.glob("*.packed")}

    in_use = cache.load(keys[0], "m", small, Packer())
    cache.load(keys[1], "m", small, Packer())
    cache.load(keys[2], "m", small, Packer())
    for key, seconds in zip(keys, (300, 200, 100), strict=False):
        age(key, seconds)
    cache.load(
        keys[1], "m", small, Packer()
    )  # a load counts as use: now e is the oldest file that is not mapped
    assert there() == {"c", "d", "e"}
    cache.load(keys[3], "m", small, Packer())
    assert there() == {"c", "d", "f"}
    assert content(in_use)[:1] == b"\7"


def test_files_over_the_limit_are_not_cached_and_evict_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = cache_in(folder, max_bytes=SIZE + DATA_START)
    cache.load(KEY, "m", SIZE, Packer())
    pack = Packer()
    assert cache.load(OTHER, "m", 2 * SIZE, pack) is None
    assert pack.calls == 0
    assert "--weight-cache-size" in caplog.text
    assert (folder / f"{KEY}.packed").exists()


def test_files_in_use_are_kept_even_if_the_limit_is_reached(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = cache_in(folder, max_bytes=SIZE + 2 * DATA_START)
    in_use = cache.load(KEY, "m", SIZE, Packer())
    assert cache.load(OTHER, "m", SIZE, Packer()) is None
    assert content(in_use)[:1] == b"\7"
    assert (folder / f"{KEY}.packed").exists()
    assert "not cached" in caplog.text


def test_temporary_files_of_killed_processes_are_deleted(folder: Path) -> None:
    folder.mkdir(parents=True)
    left = folder / f"{OTHER}.12345.tmp"
    left.write_bytes(b"half")
    being_written = packed_file.create(folder / f"{OTHER}.23456.tmp", 4096)
    cache_in(folder).load(KEY, "m", SIZE, Packer())
    assert not left.exists()
    assert (folder / f"{OTHER}.23456.tmp").exists()
    assert being_written.num_bytes == 4096


def test_concurrent_processes_pack_once(folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.path[:0] = sys.argv[3:]\n"
        "import pathlib, time\n"
        "from unit.checkpoint.test_packed_cache import *\n"
        "calls = pathlib.Path(sys.argv[2])\n"
        "def pack(memory):\n"
        "    with calls.open('a') as file: file.write('x')\n"
        "    Packer()(memory)\n"
        "    time.sleep(0.3)\n"
        "memory = cache_in(pathlib.Path(sys.argv[1])).load(KEY, 'm', SIZE, pack)\n"
        "assert content(memory)[:1] == bytes([7])\n"
    )
    command = [sys.executable, "-c", script, str(folder), str(tmp_path / "calls"), *sys.path]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(HANG_SECONDS) for process in processes] == [0, 0, 0]
    assert (tmp_path / "calls").read_text() == "x"


def test_a_process_that_waits_too_long_packs_for_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packed_cache, "MAX_WAIT", 0.05)
    waited: list[bool] = []

    def pack(memory: PackedMemory) -> None:
        assert cache_in(folder).load(KEY, "m", SIZE, Packer(), lambda: waited.append(True)) is None
        Packer()(memory)

    assert cache_in(folder).load(KEY, "m", SIZE, pack) is not None
    assert waited
    assert "not shared" in caplog.text


def test_the_environment_sets_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "ours"
    monkeypatch.setenv("OCTAVO_CACHE_DIR", "")
    assert default_folder() == tmp_path / "caches" / "octavo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == tmp_path / "home" / ".cache" / "octavo"
