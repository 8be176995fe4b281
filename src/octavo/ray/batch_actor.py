"""The actor that answers the rows of a dataset, with an engine in its process."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.errors import GrammarNotChecked, RequestError, TemplateError
from octavo.frontend.output import RequestOutput
from octavo.ray.batch_folder import Found, OutputFolder
from octavo.ray.batch_job import BatchJob, Row, without_none

if TYPE_CHECKING:
    import pyarrow as pa

# These depend on the row alone. Other errors end the job: another attempt may succeed.
OF_THE_ROW = (RequestError, TemplateError)

KINDS: Mapping[str, str] = {  # of the columns that are not text
    "token_ids": "numbers",
    "logprobs": "floats",
    "num_prompt_tokens": "number",
    "num_tokens": "number",
    "seed": "number",
}


@dataclass(frozen=True)
class Answer:
    """The columns that a row gets, without their prefix."""

    seed: int | None
    fingerprint: str
    finish_reason: str = "error"
    error: str | None = None
    text: str | None = None
    reasoning: str | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    num_prompt_tokens: int | None = None
    num_tokens: int | None = None


class BatchActor:
    """Answers batches of rows. Ray Data creates it in each of its actors and calls it with Arrow tables.

    Calls that overlap share the steps of the engine.
    """

    def __init__(self, job: BatchJob, options: Mapping[str, Any], folder: OutputFolder | None) -> None:
        from octavo.llm import LLM

        self._job = job
        self._folder = folder
        self._llm = LLM(**options, progress=False)
        self._params = job.complete(self._llm.default_params)
        facts = self._llm.facts
        self._fingerprint = facts.system_fingerprint
        if folder is not None:
            # The context decides which prompts are too long, and where an unlimited answer ends.
            engine = {"fingerprint": facts.system_fingerprint, "max_model_len": facts.max_model_len}
            folder.claim(engine | {"params": msgspec.to_builtins(self._params, str_keys=True)})

    async def __call__(self, table: "pa.Table") -> "pa.Table":
        """Return the rows with their answers; with a folder, write them there and return what was written."""
        import pyarrow as pa

        if self._folder is None:
            return await self._answered(table)
        key = self._job.columns.key
        assert key is not None
        computed = attempts = 0
        path = self._folder.file_of(table[key].to_pylist())
        # The file exists if an actor wrote it and died before its report: then Ray sends the batch again.
        if table.num_rows and not path.exists():
            attempts = self._folder.attempt(path)
            self._folder.write(path, await self._answered(table))
            computed = table.num_rows
        return pa.table({"file": [path.name], "computed": [computed], "attempts": [attempts]})

    async def _answered(self, table: "pa.Table") -> "pa.Table":
        rows = table.to_pylist()
        answers = await asyncio.gather(*(self._answer(row) for row in rows))
        columns = self._job.columns
        for name in columns.added(has_logprobs=self._job.has_logprobs):
            field = name.removeprefix(columns.prefix)
            values = _array([getattr(answer, field) for answer in answers], KINDS.get(field, "text"))
            if name in table.column_names:  # the seeds: every other name is checked to be new
                table = table.drop_columns([name])
            table = table.append_column(name, values)
        return table

    async def _answer(self, row: Row) -> Answer:
        seed = None
        try:
            seed = self._job.seed_of(row)
            output = await self._output(row, seed)
        except GrammarNotChecked:
            raise
        except OF_THE_ROW as error:
            return Answer(seed, self._fingerprint, error=str(error))
        (choice,) = output.choices
        return Answer(
            output.seed,
            self._fingerprint,
            choice.finish_reason,
            error=choice.error,
            text=choice.text,
            reasoning=choice.reasoning,
            token_ids=list(choice.token_ids),
            logprobs=None if choice.logprobs is None else [one.logprob for one in choice.logprobs],
            num_prompt_tokens=len(output.prompt_ids),
            num_tokens=len(choice.token_ids),
        )

    async def _output(self, row: Row, seed: int) -> RequestOutput:
        params = msgspec.structs.replace(self._params, seed=seed)
        value = without_none(row[self._job.columns.request])
        if value is None:
            raise RequestError(f"the column {self._job.columns.request!r} is null in this row", "prompt")
        if self._job.columns.messages is None:
            return await self._llm.agenerate(value, params)
        return await self._llm.achat(value, params)


def unfinished(table: "pa.Table", job: BatchJob, found_ref: Any) -> "pa.Table":
    """Return the rows of a table that are not in the output folder yet.

    `found_ref` refers to the `Found` of the folder, which is large, and which every task needs.
    """
    import ray

    found: Found = ray.get(found_ref)
    return table.filter([not found.has(row, job) for row in table.to_pylist()])


def _array(values: list[Any], kind: str) -> "pa.Array":
    import pyarrow as pa

    types = {
        "text": pa.large_string(),
        "number": pa.int64(),
        "numbers": pa.list_(pa.int64()),
        "floats": pa.list_(pa.float64()),
    }
    return pa.array(values, type=types[kind])
