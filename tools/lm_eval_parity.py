"""Compare lm-eval on Octavo's server with lm-eval on transformers, on the same tasks and checkpoint.

    python tools/lm_eval_parity.py CHECKPOINT.gguf --python PYTHON

PYTHON has `lm-eval[api,hf]` and `gguf`; the current interpreter has Octavo. The tasks are those of
tests/evals. Prints a table, and fails if a number of the float32 server differs from that of transformers.
With `--reference`, the results of transformers are read from a file, and PYTHON needs only `lm-eval[api]`;
`--write` writes that file.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

TASKS = Path(__file__).resolve().parents[1] / "tests" / "evals" / "tasks"
START_SECONDS = 120
MODEL = "model"
# Tolerance: three decimals; for a large number (a perplexity per word), six digits.
DECIMALS, DIGITS = 5e-4, 1e-6
# In float32, torch's log-softmax over a whole vocabulary is 1e-5 too high; float64 avoids this.
TRANSFORMERS = "dtype=float32,softmax_dtype=float64"

Results = dict[str, Any]  # {"metrics": {"task metric": number}, "items": {"task": [answers of one item]}}


@contextmanager
def served(checkpoint: Path, dtype: str) -> Iterator[str]:
    """Run a server with the checkpoint and yield its URL."""
    command = [sys.executable, "-m", "octavo.cli.main", "serve", str(checkpoint), "--port", "0"]
    options = ["--served-model-name", MODEL, "--dtype", dtype, "--max-model-len", "2048"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*command, *options, "--kv-memory", "512MiB"], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (found := re.search(r"is ready at (\S+)", _read(log))):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"the server did not start:\n{_read(log)}")
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()
            process.wait()


def _read(log: Any) -> str:
    log.seek(0)
    return str(log.read())


def evaluated(python: str, model: str, model_args: str, limit: int | None) -> Results:
    """Return all metrics of lm-eval, and the single answers that they are computed from."""
    kinds = {path.stem: yaml.safe_load(path.read_text())["output_type"] for path in TASKS.glob("*.yaml")}
    names = sorted(kinds)
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "lm_eval", "run", "--model", model, "--model_args", model_args]
        command += ["--include_path", ".", "--tasks", ",".join(f"octavo_{name}" for name in names)]
        command += ["--batch_size", "1", "--log_samples", "--output_path", folder]
        command += [] if limit is None else ["--limit", str(limit)]
        environ = os.environ | {"HF_HOME": folder, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        environ.pop("PYTHONPATH", None)  # it may point to packages of another Python
        done = subprocess.run(command, cwd=TASKS, env=environ, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr[-4000:]}")
        (found,) = Path(folder).rglob("results_*.json")
        numbers = json.loads(found.read_text())["results"]
        items = {
            name: _items(
                next(Path(folder).rglob(f"samples_octavo_{name}_*.jsonl")), are_texts=kind == "generate_until"
            )
            for name, kind in kinds.items()
        }
    metrics = {
        f"{name} {metric.partition(',')[0]}": value
        for name in names
        for metric, value in sorted(numbers[f"octavo_{name}"].items())
        if isinstance(value, float) and "stderr" not in metric
    }
    return {"metrics": metrics, "items": items}


def _items(samples: Path, *, are_texts: bool) -> list[Any]:
    """Return the answers of each item: texts, or log-likelihoods with whether they are greedy."""
    rows = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda row: int(row["doc_id"]))
    return [[answers[0] if are_texts else _score(answers[0]) for answers in row["resps"]] for row in rows]


def _score(response: Any) -> Any:
    """Convert a response: lm-eval writes numbers and booleans as strings."""
    if isinstance(response, list):
        return [float(response[0]), str(response[1]) == "True"]
    return [float(response)]


def differences(ours: Results, theirs: Results) -> tuple[float, list[str]]:
    """Return the largest difference of two log-likelihoods, and a list of all other differences."""
    maximum, differing = 0.0, []
    for task, items in ours["items"].items():
        for number, (mine, other) in enumerate(zip(items, theirs["items"][task], strict=False)):
            for one, two in zip(mine, other, strict=True):
                if isinstance(one, list):
                    maximum = max(maximum, abs(one[0] - two[0]))
                    one, two = one[1:], two[1:]  # noqa: PLW2901 - the rest must be equal
                if one != two:
                    differing.append(f"{task}, item {number}: {one}, not {two}")
    return maximum, differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--python", default=sys.executable, help="Python interpreter with lm-eval")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--limit", type=int, help="number of items per task; metrics are then not compared")
    parser.add_argument("--reference", type=Path, help="file with the results of transformers")
    parser.add_argument("--write", type=Path, help="file to write the results of transformers to")
    options = parser.parse_args()

    file = options.checkpoint.resolve()
    if options.reference is None:
        theirs = evaluated(
            options.python,
            "hf",
            f"pretrained={file.parent},gguf_file={file.name},device=cpu,{TRANSFORMERS}",
            options.limit,
        )
    else:
        theirs = json.loads(options.reference.read_text())
    if options.write is not None:
        options.write.write_text(json.dumps(theirs) + "\n")
    ours: dict[str, Results] = {}
    for dtype in options.dtypes:
        with served(file, dtype) as url:
            arguments = f"model={MODEL},base_url={url}/completions,num_concurrent=8,max_length=2048"
            ours[dtype] = evaluated(options.python, "local-completions", arguments, options.limit)
    sys.exit(0 if report(theirs, ours, is_complete=options.limit is None) else 1)


def report(theirs: Results, ours: dict[str, Results], *, is_complete: bool) -> bool:
    """Print the comparison; return whether the float32 server agrees with transformers."""
    is_equal = True
    if is_complete:
        print("| | transformers |" + "".join(f" Octavo, {dtype} |" for dtype in ours))
        print("|---|---|" + "---|" * len(ours))
        for name, number in theirs["metrics"].items():
            found = {dtype: results["metrics"][name] for dtype, results in ours.items()}
            print(f"| {name} | {number:.4f} |" + "".join(f" {value:.4f} |" for value in found.values()))
            bound = max(DECIMALS, DIGITS * abs(number))
            is_equal &= abs(found.get("float32", number) - number) < bound
    for dtype, results in ours.items():
        maximum, differing = differences(results, theirs)
        print(
            f"{dtype}: log-likelihoods of items are within {maximum:.1e}; {len(differing)} other differences"
        )
        for difference in differing:
            print(f"  {difference}")
        if dtype == "float32":
            is_equal &= maximum < DECIMALS and not differing
    return is_equal


if __name__ == "__main__":
    main()
