"""Octavo's side of `openvino_driver.py`: send the same requests as over HTTP and make the same report."""

import time
from typing import Any

from benchmarks.peers.models import ModelFiles
from benchmarks.peers.serving import Running

import octavo
from octavo.bench.serve.arrivals import Closed
from octavo.bench.serve.load import client_facts
from octavo.bench.serve.prompts import PlannedRequest, PromptVocabulary, plan_requests
from octavo.bench.serve.record import LoadRecord
from octavo.bench.serve.report import LoadReport, WorkloadFacts
from octavo.bench.serve.summary import Slo, summarise
from octavo.bench.serve.workload import Workload
from octavo.checkpoint import open_checkpoint
from octavo.text.tokenizer import Tokenizer


def run_through_pipe(running: Running, files: ModelFiles, workload: Workload, seed: int) -> LoadReport:
    tokenizer = Tokenizer(open_checkpoint(str(files.ours)).text)
    vocabulary = PromptVocabulary.of_text(lambda text: tokenizer.encode(text, add_special_tokens=False))
    warm_up = workload.scaled(num_requests=1, arrivals=Closed(1))
    running.ask(job_of(warm_up, plan_requests(warm_up, -1 - seed), vocabulary))
    planned = plan_requests(workload, seed)
    began = time.time()
    answers = running.ask(job_of(workload, planned, vocabulary))["requests"]
    records = [record_of(one, answer) for one, answer in zip(planned, answers, strict=True)]
    return LoadReport(
        octavo=octavo.__version__,
        began=began,
        url="in process",
        model=files.name,
        prompts="ids",
        workload=WorkloadFacts.of(workload),
        seed=seed,
        slo=Slo(),
        client=client_facts(0.0, records),
        summary=summarise(records, Slo()),
        requests=tuple(records),
    )


def job_of(workload: Workload, planned: list[PlannedRequest], vocabulary: PromptVocabulary) -> dict[str, Any]:
    arrivals = workload.arrivals
    return {
        "concurrency": arrivals.concurrency if isinstance(arrivals, Closed) else None,
        "requests": [
            {"at": one.at, "prompt": one.token_ids(vocabulary), "output": one.output_tokens}
            for one in planned
        ],
    }


def record_of(planned: PlannedRequest, answer: dict[str, Any]) -> LoadRecord:
    return LoadRecord(
        number=planned.number,
        prompt_tokens=planned.prompt_tokens,
        output_tokens=planned.output_tokens,
        due_at=answer["sent_at"],
        sent_at=answer["sent_at"],
        ended_at=answer["chunk_times"][-1],
        chunk_times=tuple(answer["chunk_times"]),
        chunk_tokens=tuple(answer["chunk_tokens"]),
        reported_prompt_tokens=planned.prompt_tokens,
        reported_cached_tokens=None,
        reported_completion_tokens=sum(answer["chunk_tokens"]),
        reported_queue_seconds=None,
        finish_reason="length",
        status=None,
        error=None,
    )
