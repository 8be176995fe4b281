"""`generate`: answers to all rows of a Ray dataset, computed by a pool of actors.

A row's answer is a function of checkpoint, prompt, parameters and seed. It does not depend on the batch, the
actor, the order of rows, the size of the pool, or on how often Ray computed the batch.
"""

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from octavo.checks import check_integer
from octavo.config import EngineOptions
from octavo.errors import ConfigError, OctavoError
from octavo.frontend.answer_grammar import schema_grammar
from octavo.grammar.specs import Schema
from octavo.protocol import SamplingParams
from octavo.ray.batch_actor import BatchActor, unfinished
from octavo.ray.batch_folder import FileFormat, Found, OutputFolder, table_of_lines
from octavo.ray.batch_job import BatchJob, Columns, check_params, key_digest

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset

logger = logging.getLogger(__name__)

# Fixed, and not a share of the free memory: it limits the context, which must be the same for every actor.
KV_MEMORY = 1 << 30
# While one batch ends with few sequences, the next one fills the steps of the engine.
BATCHES_PER_ACTOR = 2
NO_ROWS = "the dataset has no rows: give one that has at least one row"


@dataclass(frozen=True)
class ActorPool:
    """How many actors run, and with what."""

    min_size: int
    max_size: int
    cpus: int  # of each actor
    batch_size: int


def generate(
    dataset: "Dataset | str | Path",
    model: str,
    params: SamplingParams | None = None,
    *,
    prompt: str | None = None,
    messages: str | None = None,
    key: str | None = None,
    output: str | Path | None = None,
    output_format: FileFormat = "parquet",
    schema: Schema | None = None,
    seed: int = 0,
    seed_column: str | None = None,
    prefix: str = "",
    concurrency: int | tuple[int, int] = 1,
    cpus_per_actor: int = 1,
    batch_size: int = 64,
    **options: Any,
) -> "Dataset":
    """Return the dataset with an answer in every row.

    `dataset` is a Ray dataset, or the path of a Parquet or JSONL file or folder. `prompt` names the column
    with the prompts (default "prompt"); `messages`, instead, the column with conversations. `key` names a
    column that is different in every row.

    With `output`, a folder on a file system that all nodes share, the rows are computed now and written
    there. If the call is repeated, it computes only what is missing. Without `output`, the dataset is lazy.

    A row without a seed in `seed_column` gets one from `seed` and its key, or its prompt if there is no key.
    `options` are fields of `octavo.config.EngineOptions`.
    """
    data = _ray_data()
    columns = Columns(prompt or (None if messages else "prompt"), messages, key, seed_column, prefix)
    check_params(params)
    job = BatchJob(columns, params, None if schema is None else schema_grammar(schema, "schema"), seed)
    pool = _pool(concurrency, cpus_per_actor, batch_size)
    _check(job, output, output_format)
    engine = _engine_options(model, pool, options)
    rows = _opened(dataset, data) if isinstance(dataset, str | Path) else dataset
    _check_columns(rows.columns() or [], job)
    _check_cluster(pool)
    if output is None:
        return _answered(rows, job, engine, pool)
    folder = OutputFolder(Path(output).absolute(), output_format)
    return _resume(rows, job, engine, pool, folder)


def _resume(
    rows: Any, job: BatchJob, engine: Mapping[str, Any], pool: ActorPool, folder: OutputFolder
) -> "Dataset":
    """Compute the rows that the folder does not have, and return the rows of the folder."""
    folder.check(job)
    found = folder.scan(job)
    keys = _checked_keys(rows, job, found)
    if not keys:
        raise ConfigError(NO_ROWS)
    if not found.requests.keys() <= keys:
        raise ConfigError(f"{folder.path} has rows whose keys the dataset does not have: give another output")
    folder = folder.begin(job, str(engine["model"]))  # ends an earlier run, so only after all checks
    computed = repeated = 0
    if len(found.requests) < len(keys):
        if found.requests:
            arguments = {"job": job, "found_ref": importlib.import_module("ray").put(found)}
            rows = rows.map_batches(unfinished, fn_kwargs=arguments, batch_format="pyarrow", batch_size=None)
        reports = _answered(rows, job, engine, pool, folder)
        for report in reports.iter_batches(batch_size=None, batch_format="pyarrow"):
            computed += sum(report["computed"].to_pylist())
            repeated += sum(number > 1 for number in report["attempts"].to_pylist())
        if folder.scan(job).requests.keys() != keys:
            raise OctavoError(f"{folder.path} does not have every row: repeat the call to compute the rest")
    logger.info("computed %d of %d rows, repeated %d batches: %s", computed, len(keys), repeated, folder.path)
    return _opened(folder.path, _ray_data(), folder.file_format)


def _answered(
    rows: "Dataset",
    job: BatchJob,
    engine: Mapping[str, Any],
    pool: ActorPool,
    folder: OutputFolder | None = None,
) -> "Dataset":
    from ray.data import ActorPoolStrategy

    # One batch per block, so per task: Ray assigns tasks to actors. If an actor dies, Ray Data starts another
    # and repeats its tasks, without a limit (see `OutputFolder.attempt`).
    return rows.repartition(target_num_rows_per_block=pool.batch_size).map_batches(
        BatchActor,
        fn_constructor_kwargs={"job": job, "options": engine, "folder": folder},
        batch_size=pool.batch_size,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(
            min_size=pool.min_size,
            max_size=pool.max_size,
            max_tasks_in_flight_per_actor=2 * BATCHES_PER_ACTOR,  # with less, the pool would never grow
            max_concurrent_calls_per_actor=BATCHES_PER_ACTOR,
        ),
        num_cpus=pool.cpus,
    )


def _checked_keys(rows: Any, job: BatchJob, found: Found) -> set[bytes]:
    """Return the digests of all keys. Raises ConfigError for a repeated key, or a changed finished row."""
    keys: set[bytes] = set()
    column = job.columns.key
    assert column is not None
    # Of a Parquet file, only these columns are read.
    columns = list(job.columns.read) if found.requests else [column]
    for batch in rows.select_columns(columns).iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in batch.to_pylist():
            digest = key_digest(row[column])
            if digest in keys:
                raise ConfigError(
                    f"two rows have the key {row[column]!r}: choose a column that is different in every row"
                )
            keys.add(digest)
            if found.requests:
                found.has(row, job)
    return keys


def _opened(path: str | Path, data: Any, file_format: str | None = None) -> "Dataset":
    """Return the dataset of a file or folder."""
    place = Path(path)
    kinds = {file_format} if file_format else {place.suffix[1:]} if place.suffix else _kinds(place)
    if kinds not in ({"parquet"}, {"jsonl"}):
        raise ConfigError(f"{path} is not a Parquet or JSONL file or folder: pass a ray.data.Dataset instead")
    dataset: Dataset
    if kinds == {"parquet"}:
        dataset = data.read_parquet(str(place))
    else:
        dataset = data.read_text(str(place)).map_batches(_of_text, batch_format="pyarrow")
    return dataset


def _kinds(folder: Path) -> set[str]:
    return {file.suffix[1:] for file in folder.glob("[!._]*") if file.is_file()}


def _of_text(table: "pa.Table") -> "pa.Table":
    return table_of_lines(line.encode() for line in table["text"].to_pylist())


def _pool(concurrency: int | tuple[int, int], cpus: int, batch_size: int) -> ActorPool:
    low, high = concurrency if isinstance(concurrency, tuple) else (concurrency, concurrency)
    numbers = {"concurrency": low, "cpus_per_actor": cpus, "batch_size": batch_size}
    for name, value in numbers.items():
        check_integer(name, value, 1, 1 << 20)
    check_integer("concurrency", high, low, 1 << 20)
    return ActorPool(low, high, cpus, batch_size)


def _engine_options(model: str, pool: ActorPool, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of each engine. Raises ConfigError now and not in the actors."""
    chosen: dict[str, Any] = {"model": model, "threads": pool.cpus, "kv_memory": KV_MEMORY} | dict(options)
    EngineOptions(**chosen)
    return chosen


def _check(job: BatchJob, output: str | Path | None, output_format: str) -> None:
    if job.columns.prompt is not None and job.columns.messages is not None:
        raise ConfigError("give prompt or messages, not both")
    if output_format not in get_args(FileFormat):
        raise ConfigError(f"output_format must be one of {', '.join(get_args(FileFormat))}")
    check_integer("seed", job.seed, -(1 << 63), (1 << 63) - 1)
    if output is not None and job.columns.key is None:
        raise ConfigError("output needs key, the name of a column that is different in every row")
    if output is not None and "://" in str(output):
        raise ConfigError(f"output must be a folder on a file system that all nodes share, not {output}")


def _check_columns(there: list[str], job: BatchJob) -> None:
    if not there:
        raise ConfigError(NO_ROWS)
    missing = [name for name in job.columns.read if name not in there]
    if missing:
        raise ConfigError(f"the dataset has no column {missing[0]!r}: its columns are {', '.join(there)}")
    added = set(job.columns.added(has_logprobs=job.has_logprobs)) - {job.columns.seed}
    taken = sorted(added & set(there))
    if taken:
        raise ConfigError(
            f"the dataset has a column {taken[0]!r} already: set prefix, as in prefix='answer_', to name the"
            " added columns differently"
        )


def _check_cluster(pool: ActorPool) -> None:
    """Raise ConfigError if the pool would wait forever for its own CPUs, or for a CPU that reads rows."""
    cluster: Any = importlib.import_module("ray")
    cpus = [node["Resources"].get("CPU", 0) for node in cluster.nodes() if node["Alive"]]
    if pool.cpus > max(cpus):
        raise ConfigError(f"cpus_per_actor is {pool.cpus}, but the largest node has {max(cpus):g} CPUs")
    if pool.min_size * pool.cpus + 1 > sum(cpus):
        raise ConfigError(
            f"{pool.min_size} actors with {pool.cpus} CPUs each and 1 CPU for reading rows are more than the"
            f" {sum(cpus):g} CPUs of the cluster: lower concurrency or cpus_per_actor"
        )


def _ray_data() -> Any:
    try:
        import ray.data
    except ImportError as error:
        raise ConfigError("Ray Data is not installed: pip install 'octavo[ray]'") from error
    return ray.data
