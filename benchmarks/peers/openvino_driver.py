"""Drive OpenVINO GenAI: python openvino_driver.py MODEL THREADS KV_GB

Runs in OpenVINO's environment and imports nothing from Octavo. Each line of standard input is a job in JSON:
    {"concurrency": int or null, "requests": [{"at": seconds or null, "prompt", "output"}]}
Each line of standard output is its result, with times in seconds since the start of the load:
    {"requests": [{"sent_at", "chunk_times", "chunk_tokens"}]}
There is no HTTP and no conversion to text, so the figures show the engine at its best.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai


def open_pipeline(model: str, threads: int, kv_gigabytes: int) -> Any:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = kv_gigabytes
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = 64
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    properties = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16",
        "KV_CACHE_PRECISION": "bf16",
    }
    return genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)


def greedy(num_tokens: int) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


class OpenVinoLoad:
    """One load. A request that arrives during a step waits for the next, and is timed from its arrival."""

    def __init__(self, pipeline: Any, job: dict[str, Any], first_id: int) -> None:
        self._pipeline = pipeline
        self._requests = job["requests"]
        self._concurrency = job["concurrency"]
        self._first_id = first_id
        self._open: dict[int, Any] = {}
        self._answers: list[dict[str, Any]] = []

    def run(self) -> list[dict[str, Any]]:
        started = time.perf_counter()
        while self._open or len(self._answers) < len(self._requests):
            self._admit(time.perf_counter() - started)
            if not self._open:
                due_in = self._requests[len(self._answers)]["at"] - (time.perf_counter() - started)
                time.sleep(max(due_in, 0.0))
                continue
            self._pipeline.step()
            self._read(time.perf_counter() - started)
        return self._answers

    def _admit(self, now: float) -> None:
        while len(self._answers) < len(self._requests):
            number = len(self._answers)
            request = self._requests[number]
            if self._concurrency is None:
                if request["at"] > now:
                    return
                sent_at = request["at"]
            else:
                if len(self._open) >= self._concurrency:
                    return
                sent_at = now
            prompt = ov.Tensor(np.array([request["prompt"]], dtype=np.int64))
            self._open[number] = self._pipeline.add_request(
                self._first_id + number, prompt, greedy(request["output"])
            )
            self._answers.append({"sent_at": sent_at, "chunk_times": [], "chunk_tokens": []})

    def _read(self, now: float) -> None:
        for number, handle in list(self._open.items()):
            answer = self._answers[number]
            while handle.can_read():
                for output in handle.read().values():
                    if output.generated_ids:
                        answer["chunk_times"].append(now)
                        answer["chunk_tokens"].append(len(output.generated_ids))
            if sum(answer["chunk_tokens"]) >= self._requests[number]["output"]:
                del self._open[number]


def main() -> None:
    model, threads, kv_gigabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    pipeline = open_pipeline(model, threads, kv_gigabytes)
    print(json.dumps({"ready": True}), flush=True)
    next_id = 0
    for line in sys.stdin:
        job = json.loads(line)
        answers = OpenVinoLoad(pipeline, job, next_id).run()
        next_id += len(answers)
        print(json.dumps({"requests": answers}), flush=True)


if __name__ == "__main__":
    main()
