"""`octavo.ray.generate` on a real Ray: exact, resumable, and unchanged by the death of an actor."""

import asyncio
import json
import logging
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from docs.pages import ROOT, marked
from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, OctavoError
from octavo.protocol import GrammarKind, GrammarSpec
from octavo.ray import batch, generate
from octavo.ray.batch_actor import BatchActor
from octavo.ray.batch_folder import ENGINE, MANIFEST, RUN, OutputFolder
from octavo.ray.batch_job import BatchJob, Columns
from on_ray.ray_cluster import RayCluster, ray_folder

pytestmark = pytest.mark.xdist_group("ray")

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ray = pytest.importorskip("ray")

NUM_ROWS = 96
PARAMS = SamplingParams(max_tokens=12, temperature=0.9, logprobs=0)
# With the native kernels, which need the default block size: on the torch path, a row depends on its batch.
ENGINE_OPTIONS: dict[str, Any] = {"kv_memory": "4MiB", "kernels": "auto", "weight_cache_size": 0}
TOO_LONG = 17  # the key of a row whose prompt exceeds the context
Rows = dict[Any, dict[str, Any]]  # by key


def rows() -> list[dict[str, Any]]:
    prompts = [f"Row {number} is about" for number in range(NUM_ROWS)]
    prompts[TOO_LONG] = "too long " * 100
    return [{"id": number, "prompt": prompt, "label": f"l{number}"} for number, prompt in enumerate(prompts)]


def job(**columns: Any) -> BatchJob:
    return BatchJob(replace(Columns("prompt", None, "id", None, ""), **columns), PARAMS, None, 5)


def by_key(table: Any, key: str = "id") -> Rows:
    found = table.to_pylist()
    assert len({row[key] for row in found}) == len(found)
    return {row[key]: row for row in found}


def whole(dataset: Any, key: str = "id") -> Rows:
    return by_key(pa.concat_tables(dataset.iter_batches(batch_size=None, batch_format="pyarrow")), key)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Connect this process to a Ray of this test's own."""
    with ray_folder() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "disabled")  # the token of whoever runs the tests is not used
        started = RayCluster(folder, mode="disabled")
        started.add_node(3)
        ray.init(started.address, log_to_driver=False, logging_level=logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield
        ray.shutdown()
        started.close()


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> str:
    return str(tiny_checkpoint)


@pytest.fixture(scope="module")
def actor(model: str) -> BatchActor:
    return BatchActor(job(), {"model": model, **ENGINE_OPTIONS}, None)


@pytest.fixture(scope="module")
def expected(actor: BatchActor) -> Rows:
    """The answers of one engine to one batch with all rows."""
    return by_key(call(actor, rows()))


def call(actor: BatchActor, batch: list[dict[str, Any]]) -> Any:
    return asyncio.run(actor(pa.Table.from_pylist(batch)))


# -- one actor, without Ray ---------------------------------------------------------------------------


def test_answers_are_those_of_a_plain_llm(model: str, expected: Rows) -> None:
    good = [row for key, row in expected.items() if key != TOO_LONG]
    with LLM(model, **ENGINE_OPTIONS) as llm:
        params = [msgspec.structs.replace(PARAMS, seed=row["seed"]) for row in good]
        outputs = llm.generate([row["prompt"] for row in good], params)
        assert {row["fingerprint"] for row in expected.values()} == {llm.facts.system_fingerprint}
    for row, output in zip(good, outputs, strict=True):
        (choice,) = output.choices
        assert choice.logprobs is not None
        assert row["text"] == choice.text
        assert row["token_ids"] == list(choice.token_ids)
        assert row["logprobs"] == [one.logprob for one in choice.logprobs]
        assert (row["finish_reason"], row["error"]) == (choice.finish_reason, None)
        assert (row["num_prompt_tokens"], row["num_tokens"]) == (
            len(output.prompt_ids),
            len(choice.token_ids),
        )
    assert len({row["seed"] for row in expected.values()}) == NUM_ROWS


def test_a_row_that_is_rejected_has_an_error(expected: Rows) -> None:
    row = expected[TOO_LONG]
    assert "maximum context length" in row["error"]
    assert (row["finish_reason"], row["text"], row["label"]) == ("error", None, f"l{TOO_LONG}")


def test_batch_and_order_do_not_change_a_row(actor: BatchActor, expected: Rows) -> None:
    backwards = rows()[::-1]
    parts = [call(actor, backwards[at : at + 7]) for at in range(0, NUM_ROWS, 7)]
    assert by_key(pa.concat_tables(parts)) == expected
    assert asyncio.run(actor(parts[0].select(["id", "prompt"])[:0])).num_rows == 0


def test_rows_may_have_seeds_and_no_keys(model: str) -> None:
    given: list[dict[str, Any]] = [
        {"prompt": "Say", "seed": 3},
        {"prompt": "Say", "seed": None},
        {"prompt": "Say", "seed": None},
    ]
    own = BatchActor(job(key=None, seed="seed"), {"model": model, **ENGINE_OPTIONS}, None)
    first, second, third = call(own, given).to_pylist()
    assert first["seed"] == 3
    assert second == third  # the key of a row is its prompt
    assert first["token_ids"] != second["token_ids"]
    (broken,) = call(own, [{"prompt": "Say", "seed": "x"}]).to_pylist()
    assert (broken["seed"], broken["error"]) == (None, "a seed must be an integer, not str")


def test_conversations_with_a_grammar(model: str) -> None:
    messages = [{"role": "user", "content": "Yes?", "name": None}]
    grammar = GrammarSpec(GrammarKind.CHOICE, '["yes", "no"]')
    chat = BatchJob(Columns(None, "chat", "id", None, "a_"), SamplingParams(max_tokens=8), grammar, 0)
    own = BatchActor(chat, {"model": model, **ENGINE_OPTIONS}, None)
    good, bad = call(own, [{"id": 0, "chat": messages}, {"id": 1, "chat": None}]).to_pylist()
    assert good["a_text"] in ("yes", "no")
    assert good["a_reasoning"] is None
    assert bad["a_error"] == "the column 'chat' is null in this row"
    with LLM(model, **ENGINE_OPTIONS) as llm:
        params = SamplingParams(max_tokens=8, grammar=grammar, seed=good["a_seed"])
        assert llm.chat([{"role": "user", "content": "Yes?"}], params)[0].text == good["a_text"]


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
def test_a_repeated_batch_has_one_file(model: str, tmp_path: Path, expected: Rows, file_format: Any) -> None:
    folder = OutputFolder(tmp_path / "out", file_format).begin(job(), model)
    own = BatchActor(job(), {"model": model, **ENGINE_OPTIONS}, folder)
    assert call(own, rows()[:8])["computed"].to_pylist() == [8]
    (path,) = folder.files()
    content = path.read_bytes()
    assert call(own, rows()[:8])["computed"].to_pylist() == [0]
    path.unlink()
    assert call(own, rows()[:8])["computed"].to_pylist() == [8]
    assert [one.read_bytes() for one in folder.files()] == [content]
    # Batches of different runs may overlap: a row stays in one file.
    call(own, rows()[4:12])
    assert len(folder.scan(job()).requests) == 12
    assert by_key(pa.concat_tables(folder._read(one) for one in folder.files())) == {
        key: row for key, row in expected.items() if key < 12
    }
    # A later run takes the folder over.
    folder.begin(job(), model)
    with pytest.raises(Exception, match="a later run writes"):
        call(own, rows()[20:24])


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
def test_rows_are_finished_although_their_seeds_were_replaced(
    model: str, tmp_path: Path, file_format: Any
) -> None:
    own = job(seed="seed")
    folder = OutputFolder(tmp_path, file_format).begin(own, model)
    answering = BatchActor(own, {"model": model, **ENGINE_OPTIONS}, folder)
    given: list[dict[str, Any]] = [
        {"id": 0, "prompt": "Say", "seed": None},
        {"id": 1, "prompt": "Say", "seed": 3},
    ]
    rejected = {"id": 2, "prompt": "Say", "seed": "x"}
    call(answering, given)
    call(answering, [rejected])
    found = folder.scan(own)
    assert all(found.has(row, own) for row in (*given, rejected))
    for changed in (given[0] | {"seed": 4}, given[1] | {"seed": None}, rejected | {"seed": 3}):
        with pytest.raises(ConfigError, match="another prompt or seed"):
            found.has(changed, own)


def test_a_run_that_is_replaced_while_it_writes_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = OutputFolder(tmp_path, "parquet").begin(job(), "model")
    write_table = pq.write_table

    def write_slowly(*arguments: Any) -> None:
        folder.begin(job(), "model")
        write_table(*arguments)

    monkeypatch.setattr(pq, "write_table", write_slowly)
    with pytest.raises(OctavoError, match="a later run writes"):
        folder.write(tmp_path / "part-0.parquet", pa.Table.from_pylist(rows()[:2]))
    assert {path.name for path in tmp_path.iterdir()} == {MANIFEST, RUN}


class Listed:
    """A dataset, as far as the checks before a run read it."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def select_columns(self, names: list[str]) -> "Listed":
        return Listed(self._table.select(names))

    def iter_batches(self, **_: Any) -> list[Any]:
        return [self._table]


def test_a_rejected_call_does_not_end_a_run(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path, "parquet").begin(job(), "model")
    table = pa.Table.from_pylist(rows()[:2])
    folder.write(tmp_path / "part-0.parquet", table)
    pool = batch.ActorPool(1, 1, 1, 1)
    for given, message in ((table[:1], "keys the dataset does not have"), (table[:0], "has no rows")):
        with pytest.raises(ConfigError, match=message):
            batch._resume(Listed(given), job(), {"model": "model"}, pool, OutputFolder(tmp_path, "parquet"))
    assert (tmp_path / RUN).read_text() == folder.run


def test_another_engine_is_refused(model: str, tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path, "parquet").begin(job(), model)
    folder.claim({"fingerprint": "fp_another"})
    with pytest.raises(ConfigError, match=r'fingerprint = "fp_another", and now it is "fp_'):
        BatchActor(job(), {"model": model, **ENGINE_OPTIONS}, folder)


# -- with Ray -------------------------------------------------------------------------------------------


class DyingActor(BatchActor):
    """Kills its process twice, whichever actor it is: before a batch is written, and after."""

    async def __call__(self, table: Any) -> Any:
        assert self._folder is not None
        if self._folder.files() and self._is_first("before"):
            await self._answered(table)
            os.kill(os.getpid(), signal.SIGKILL)
        report = await super().__call__(table)
        if len(self._folder.files()) > 3 and self._is_first("after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return report

    def _is_first(self, name: str) -> bool:
        assert self._folder is not None
        try:
            os.close(os.open(f"{self._folder.path}.{name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows()), path)
    return path


@pytest.fixture(scope="module")
def disturbed(
    cluster: None, model: str, parquet: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Rows]:
    """A run with two actors, which are killed while they have batches."""
    import ray.cloudpickle

    ray.cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["x"]))
    folder = tmp_path_factory.mktemp("disturbed") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "BatchActor", DyingActor)
        answers = generate(parquet, model, PARAMS, **job_arguments(folder), batch_size=8, concurrency=2)
        return folder, whole(answers)


def job_arguments(folder: Path) -> dict[str, Any]:
    return {"key": "id", "seed": 5, "output": folder, **ENGINE_OPTIONS}


def test_killed_actors_do_not_change_the_output(disturbed: tuple[Path, Rows], expected: Rows) -> None:
    folder, answers = disturbed
    assert Path(f"{folder}.before").exists()
    assert Path(f"{folder}.after").exists()
    assert answers == expected
    assert sum(pq.read_metadata(path).num_rows for path in folder.glob("part-*")) == NUM_ROWS


def test_resuming_computes_what_is_missing(
    disturbed: tuple[Path, Rows], model: str, parquet: Path, expected: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = disturbed
    removed = sorted(folder.glob("part-*"))[:2]
    missing = sum(pq.read_metadata(path).num_rows for path in removed)
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("part-*") if path not in removed}
    for path in removed:
        path.unlink()
    with caplog.at_level(logging.INFO, "octavo.ray"):
        answers = generate(parquet, model, PARAMS, **job_arguments(folder), batch_size=5)
    assert whole(answers) == expected
    assert f"computed {missing} of {NUM_ROWS} rows," in caplog.text
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_without_a_folder_the_dataset_is_lazy(cluster: None, model: str, expected: Rows) -> None:
    dataset = ray.data.from_items(rows()[::-1])
    answers = generate(dataset, model, PARAMS, key="id", seed=5, batch_size=20, **ENGINE_OPTIONS)
    assert whole(answers) == expected


def test_a_finished_folder_starts_no_actor(
    disturbed: tuple[Path, Rows], parquet: Path, model: str, expected: Rows
) -> None:
    folder, _ = disturbed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "_answered", None)
        assert whole(generate(parquet, model, PARAMS, **job_arguments(folder))) == expected


def test_a_changed_job_is_refused(disturbed: tuple[Path, Rows], parquet: Path, model: str) -> None:
    folder, _ = disturbed
    arguments = job_arguments(folder)
    with pytest.raises(ConfigError, match=r"params.max_tokens = 12, and now it is 13: use the same value"):
        generate(parquet, model, msgspec.structs.replace(PARAMS, max_tokens=13), **arguments)
    with pytest.raises(ConfigError, match=r"seed = 5, and now it is 6"):
        generate(parquet, model, PARAMS, **arguments | {"seed": 6})
    changed = ray.data.from_items([row | {"prompt": "another"} for row in rows()])
    with pytest.raises(ConfigError, match="was answered with another prompt or seed"):
        generate(changed, model, PARAMS, **arguments)
    fewer = ray.data.from_items(rows()[:5])
    with pytest.raises(ConfigError, match="keys the dataset does not have"):
        generate(fewer, model, PARAMS, **arguments)
    assert json.loads((folder / MANIFEST).read_text())["params"]["max_tokens"] == 12
    assert json.loads((folder / ENGINE).read_text())["params"]["max_tokens"] == 12


def test_mistakes_are_reported_before_an_actor_starts(cluster: None, model: str, tmp_path: Path) -> None:
    twice = ray.data.from_items([{"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"}])
    taken = ray.data.from_items([{"id": 1, "text": "a"}])
    mistakes: list[tuple[Any, dict[str, Any], str]] = [
        (twice, {"key": "id", "output": tmp_path / "out"}, "two rows have the key 1"),
        (twice, {"output": tmp_path / "out"}, "output needs key"),
        (twice, {"prompt": "question"}, "no column 'question': its columns are id, prompt"),
        (taken, {"prompt": "text"}, "a column 'text' already: set prefix"),
        (twice, {"concurrency": 3}, "1 CPU for reading rows are more than the 3 CPUs"),
        (twice, {"cpus_per_actor": 9}, "the largest node has 3 CPUs"),
        (twice, {"params": SamplingParams(n=2)}, "n must be 1"),
        (twice, {"params": SamplingParams(seed=2)}, "every row has its own seed"),
        (tmp_path / "rows.csv", {}, "not a Parquet or JSONL file"),
    ]
    for dataset, arguments, message in mistakes:
        with pytest.raises(ConfigError, match=message):
            generate(dataset, model, **arguments)
    assert not (tmp_path / "out").exists()


# -- the documentation ------------------------------------------------------------------------------------


def test_documented_programs_run(
    cluster: None, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page form one program. In this process, because Ray takes long to start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL", model)
    for page, blocks in marked("ray-data").items():
        exec(compile("".join(block.body for block in blocks), page, "exec"), {"__name__": "__main__"})


def test_the_example_labels_every_row(
    cluster: None,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reviews = tmp_path / "reviews.jsonl"
    reviews.write_text("".join(json.dumps({"id": f"r{n}", "text": "Good."}) + "\n" for n in range(9)))
    monkeypatch.setattr(sys, "argv", ["label", model, str(reviews), str(tmp_path / "labelled")])
    runpy.run_path(str(ROOT / "examples" / "label_dataset.py"), run_name="__main__")
    labels = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [label["id"] for label in labels] == [f"r{n}" for n in range(9)]
    assert {label["label"] for label in labels} <= {"positive", "negative"}
