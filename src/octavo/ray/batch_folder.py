"""The folder that a job over a dataset writes: one file per batch, and what the files were computed with.

Every file appears under its name complete or not at all. The name is a hash of the keys in the file, so a
batch that is computed again replaces its file with the same bytes. A folder has one writer: the run whose
name is in `RUN`. A later run replaces the name, and an earlier one that is still alive stops at its next
file.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from octavo.errors import ConfigError, OctavoError
from octavo.ray.batch_job import BatchJob, Row, key_digest
from octavo.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION = 1
# Readers of data folders skip names that begin with an underscore or a dot.
MANIFEST, ENGINE, RUN, ATTEMPTS = "_octavo.json", "_octavo-engine.json", "_octavo-run", "_octavo-attempts"
MAX_ATTEMPTS = 10  # at a batch: then it is likely the batch that kills its actors
FileFormat = Literal["parquet", "jsonl"]
ELSEWHERE = "give another output folder, or delete this one to compute everything again"


@dataclass(frozen=True)
class Found:
    """The finished rows of a folder: the digest of the request of each key."""

    requests: Mapping[bytes, bytes]

    def has(self, row: Row, job: BatchJob) -> bool:
        """Return whether a row is finished. Raises ConfigError if its prompt has changed since."""
        assert job.columns.key is not None
        key = row[job.columns.key]
        request = self.requests.get(key_digest(key))
        if request is not None and request != job.request_digest(row):
            raise ConfigError(
                f"the row with the key {key!r} was answered with another prompt or seed: {ELSEWHERE}"
            )
        return request is not None


@dataclass(frozen=True)
class OutputFolder:
    """Holds no state besides the path, so the driver and every actor have a copy of their own."""

    path: Path
    file_format: FileFormat
    run: str = ""  # the name of the run that may write

    # -- the driver -----------------------------------------------------------------------------------

    def check(self, job: BatchJob) -> None:
        """Raise ConfigError if the folder contains something else than the output of this job."""
        if (self.path / MANIFEST).exists():
            _compare(_read_json(self.path / MANIFEST), _facts(job, self.file_format), self.path)
        elif self.path.exists() and any(self.path.iterdir()):
            raise ConfigError(
                f"{self.path} has files but no {MANIFEST}: give an empty or a new output folder"
            )

    def begin(self, job: BatchJob, model: str) -> "OutputFolder":
        """Create the folder if there is none, and return it for the writers of a new run."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / MANIFEST).exists():
            facts = _facts(job, self.file_format) | {"model": model, "octavo": __version__}
            _write(self.path / MANIFEST, msgspec.json.format(msgspec.json.encode(facts), indent=2))
        run = secrets.token_hex(8)
        _write(self.path / RUN, run.encode())
        for left in (*self.path.glob(".*.tmp"), *self.path.glob(f"{ATTEMPTS}-*")):  # by killed actors
            left.unlink(missing_ok=True)
        return OutputFolder(self.path, self.file_format, run)

    def files(self) -> list[Path]:
        return sorted(self.path.glob(f"part-*.{self.file_format}"))

    def scan(self, job: BatchJob) -> Found:
        """Return the rows in all files. Rows that two files contain stay in one of them.

        That happens if actors of an earlier run were still alive when this one had read the folder.
        """
        assert job.columns.key is not None
        requests: dict[bytes, bytes] = {}
        for path in self.files():
            table = self._read(path, job.columns.read)
            keys = [key_digest(key) for key in table[job.columns.key].to_pylist()]
            is_new = [key not in requests for key in keys]
            for key, row in zip(keys, table.to_pylist(), strict=True):
                digest = job.output_digest(row)
                if requests.setdefault(key, digest) != digest:
                    raise ConfigError(f"{self.path} has two different rows with one key: {ELSEWHERE}")
            if not any(is_new):
                path.unlink()
            elif not all(is_new):
                self._write_temporary(path, self._read(path).filter(is_new)).replace(path)
        return Found(requests)

    # -- the actors -----------------------------------------------------------------------------------

    def claim(self, engine: Mapping[str, Any]) -> None:
        """Check that this engine gives the answers that the others give. The first one writes what it is."""
        path, content = self.path / ENGINE, msgspec.json.encode(engine, order="sorted")
        own = self._temporary(ENGINE)
        own.write_bytes(content)
        try:
            os.link(own, path)  # unlike a rename, this never replaces the file of another actor
        except FileExistsError:
            _compare(_read_json(path), msgspec.json.decode(content), self.path)
        finally:
            own.unlink()

    def file_of(self, keys: Iterable[object]) -> Path:
        """Return the path of the file for a batch with these keys."""
        digest = hashlib.blake2b(digest_size=16)
        for key in keys:
            digest.update(key_digest(key))
        return self.path / f"part-{digest.hexdigest()}.{self.file_format}"

    def attempt(self, path: Path) -> int:
        """Count an attempt at a batch and return the number of attempts in this run.

        Ray repeats a batch for as long as its actors die, so a row that crashes the process needs a limit.
        """
        with self._attempts(path).open("ab") as file:
            file.write(b".")
            number = file.tell()
        if number > MAX_ATTEMPTS:
            raise OctavoError(
                f"{MAX_ATTEMPTS} actors died while they computed {path.name}: see Ray's logs, and repeat the"
                " call with a smaller batch_size to compute the other rows"
            )
        return number

    def write(self, path: Path, table: "pa.Table") -> None:
        """Write the file of a batch, unless a later run writes to this folder."""
        self._check_run()
        own = self._write_temporary(path, table)
        try:
            self._check_run()  # again: writing takes long
            own.replace(path)
        finally:
            own.unlink(missing_ok=True)
        self._attempts(path).unlink(missing_ok=True)

    def _check_run(self) -> None:
        if (self.path / RUN).read_text() != self.run:
            raise OctavoError(f"a later run writes to {self.path}: this run stops")

    # -- files ----------------------------------------------------------------------------------------

    def _write_temporary(self, path: Path, table: "pa.Table") -> Path:
        """Write a file that is complete, but does not have its name yet."""
        own = self._temporary(path.name)
        with own.open("wb") as file:
            if self.file_format == "parquet":
                import pyarrow.parquet

                pyarrow.parquet.write_table(table, file)
            else:
                file.writelines(msgspec.json.encode(row) + b"\n" for row in table.to_pylist())
            file.flush()
            os.fsync(file.fileno())
        return own

    def _read(self, path: Path, columns: Iterable[str] | None = None) -> "pa.Table":
        import pyarrow.parquet

        try:
            if self.file_format == "parquet":
                names = None if columns is None else list(columns)
                return pyarrow.parquet.read_table(path, columns=names)
            table = table_of_lines(path.read_bytes().splitlines())
            return table if columns is None else table.select(list(columns))
        except (pyarrow.ArrowException, msgspec.MsgspecError, KeyError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error}). Delete it: its rows are then computed again."
            ) from error

    def _attempts(self, path: Path) -> Path:
        return self.path / f"{ATTEMPTS}-{path.stem}"

    def _temporary(self, name: str) -> Path:
        return self.path / f".{name}.{secrets.token_hex(8)}.tmp"


def table_of_lines(lines: Iterable[bytes]) -> "pa.Table":
    """Return the rows of JSON lines. Unlike Arrow's own reader, this leaves strings that look like dates."""
    import pyarrow as pa

    rows = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines if line.strip()]
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _facts(job: BatchJob, file_format: FileFormat) -> dict[str, Any]:
    """Return what two runs must have in common to write to one folder."""
    given = {"columns": job.columns, "params": job.params, "grammar": job.grammar, "seed": job.seed}
    facts = msgspec.json.decode(msgspec.json.encode(given), type=dict[str, Any])  # as they are read later
    return {"format": FORMAT_VERSION, "files": file_format, **facts}


def _compare(there: Mapping[str, Any], given: Mapping[str, Any], folder: Path) -> None:
    """Raise ConfigError if two descriptions differ in a field of `given`."""
    for field, (old, new) in _differences(there, given):
        raise ConfigError(
            f"{folder} was written with {field} = {_shown(old)}, and now it is {_shown(new)}: use the same"
            f" value to resume, or {ELSEWHERE}"
        )


def _differences(there: Any, given: Any, field: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(there, dict) and isinstance(given, dict):
        for name in given:
            yield from _differences(there.get(name), given[name], f"{field}.{name}" if field else name)
    elif there != given:
        yield field, (there, given)


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): {ELSEWHERE}") from error


def _write(path: Path, content: bytes) -> None:
    """Write a small file that appears complete or not at all."""
    own = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    own.write_bytes(content)
    own.replace(path)
