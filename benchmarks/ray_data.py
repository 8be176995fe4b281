"""Kills an actor of a Ray Data job and compares every row with the answer of a plain `LLM`.

python benchmarks/ray_data.py [--model MODEL] [--rows 5000] [--batch-size 64] [--concurrency 2] [--tokens 24]

Without `--model`, the model is the tiny one of the tests. The job runs on a Ray of its own on this machine.
When a third of the rows is written, one actor gets SIGKILL. Then a third of the files is deleted and the job
is resumed.
"""

import argparse
import logging
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import ray

from octavo import LLM, SamplingParams
from octavo.ray import generate

POLL_SECONDS = 0.02
KV_MEMORY = "64MiB"
NUM_STARTS = 5
COMPARED = ("text", "token_ids", "logprobs", "finish_reason")


class Killer(threading.Thread):
    """Sends SIGKILL to one actor when the folder has a number of files."""

    def __init__(self, folder: Path, num_files: int) -> None:
        super().__init__(daemon=True)
        self.num_killed = 0
        self._folder = folder
        self._num_files = num_files

    def run(self) -> None:
        while len(list(self._folder.glob("part-*"))) < self._num_files:
            time.sleep(POLL_SECONDS)
        workers = psutil.Process().children(recursive=True)
        actors = [one for one in workers if one.name().startswith("ray::MapWorker")]
        if actors:
            actors[0].send_signal(signal.SIGKILL)
            self.num_killed = 1


class JobCounts(logging.Handler):
    """Keeps the numbers of the last log line of a job: computed rows, all rows, repeated batches."""

    last: tuple[Any, ...] = ()

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.args if isinstance(record.args, tuple) else ()


def write_rows(path: Path, number: int) -> None:
    prompts = [f"Row {index} of the table says" for index in range(number)]
    pq.write_table(pa.table({"id": list(range(number)), "prompt": prompts}), path)


def differing(rows: list[dict[str, Any]], model: str, params: SamplingParams) -> int:
    """Return the number of rows that a plain LLM answers differently."""
    with LLM(model, kv_memory=KV_MEMORY, progress=False) as llm:
        each = [msgspec.structs.replace(params, seed=row["seed"]) for row in rows]
        outputs = llm.generate([row["prompt"] for row in rows], each, progress=False)
    plain = [
        (one.text, list(one.token_ids), [token.logprob for token in one.logprobs or ()], one.finish_reason)
        for output in outputs
        for one in output.choices
    ]
    return sum(tuple(row[name] for name in COMPARED) != one for row, one in zip(rows, plain, strict=True))


def report(title: str, rows: list[dict[str, Any]], number: int, counts: JobCounts, seconds: float) -> None:
    keys = {row["id"] for row in rows}
    computed, _, repeated, _ = counts.last
    print(
        f"{title}: {len(rows)} rows in {seconds:.1f} s; computed {computed}, repeated batches {repeated},"
        f" twice {len(rows) - len(keys)}, lost {number - len(keys)}",
        flush=True,
    )


def run(options: argparse.Namespace, model: str, place: Path) -> bool:
    counts = JobCounts()
    logging.getLogger("octavo.ray").addHandler(counts)
    logging.getLogger("octavo.ray").setLevel(logging.INFO)
    params = SamplingParams(max_tokens=options.tokens, logprobs=0)
    source, folder = place / "rows.parquet", place / "answers"
    write_rows(source, options.rows)
    killer = Killer(folder, options.rows // options.batch_size // 3)
    killer.start()
    rows: list[dict[str, Any]] = []
    for title in ("with a killed actor", "resumed"):
        began = time.perf_counter()
        answers = generate(
            source,
            model,
            params,
            key="id",
            output=folder,
            batch_size=options.batch_size,
            concurrency=options.concurrency,
            kv_memory=KV_MEMORY,
        )
        seconds = time.perf_counter() - began
        rows = sorted(answers.take_all(), key=lambda row: int(row["id"]))
        report(title, rows, options.rows, counts, seconds)
        different = differing(rows, model, params)
        print(f"  killed actors {killer.num_killed}, different from a plain LLM {different}", flush=True)
        if different or len(rows) != options.rows or not killer.num_killed:
            return False
        for path in sorted(folder.glob("part-*"))[::3]:
            path.unlink()
    return True


def start_ray(num_cpus: int) -> None:
    """Start a Ray of this program's own, again if a busy machine exceeds Ray's time limit for a start."""
    for attempt in range(NUM_STARTS):
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
            return
        except Exception:
            ray.shutdown()
            if attempt == NUM_STARTS - 1:
                raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model is None:
            sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
            from data.tiny_llama import write_tiny_llama

            model = str(Path(folder) / "tiny")
            Path(model).mkdir()
            write_tiny_llama(Path(model))
        start_ray(options.concurrency + 1)
        ray.data.DataContext.get_current().enable_progress_bars = False
        return 0 if run(options, model, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
