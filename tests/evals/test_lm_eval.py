"""lm-eval results, compared with those of transformers on the same checkpoint in reference.json.

`tools/lm_eval_parity.py` creates that file and compares complete runs. Here lm-eval runs on a few items of
each task if $OCTAVO_EVAL_PYTHON names a Python that has it (it has sixty dependencies). The other tests send
the same requests without it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from data.json_types import Json
from patience import HANG_SECONDS
from server.process import Server

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CHECKPOINT = "smollm2-135m-instruct-q4_1.gguf"
REFERENCE = json.loads((HERE / "reference.json").read_text())
NEAR = 5e-4  # three decimals

pytestmark = [pytest.mark.assets, pytest.mark.xdist_group("server")]


class Harness:
    """A minimal version of lm-eval's `local-completions`."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=HANG_SECONDS)
        info = self._http.get("/tokenizer_info").raise_for_status().json()
        self.eos = info["eos_token"]
        self.prefix = self.encode(info["bos_token"] or info["eos_token"])[:1]

    def encode(self, text: str) -> list[int]:
        asked = {"prompt": text, "add_special_tokens": False}
        return list(self._http.post("/tokenize", json=asked).raise_for_status().json()["tokens"])

    def complete(self, **fields: Json) -> list[Json]:
        answer = self._http.post("/v1/completions", json={"model": "smollm2", "seed": 1234} | fields)
        return sorted(answer.raise_for_status().json()["choices"], key=lambda choice: choice["index"])

    def score(self, pairs: list[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """Return the log-likelihoods of tokens from a position on, and whether each token was the best."""
        asked = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True}
        scores = []
        for (_, begin), choice in zip(
            pairs, self.complete(prompt=[ids for ids, _ in pairs], **asked), strict=True
        ):
            tokens = choice["logprobs"]["token_logprobs"][begin:-1]
            best = [max(top.values()) for top in choice["logprobs"]["top_logprobs"][begin:-1]]
            scores.append((sum(tokens), tokens == best))
        return scores

    def pair(self, context: str, ending: str) -> tuple[list[int], int]:
        return self.encode(f"{context} {ending}"), len(self.encode(context))


def rows(name: str) -> list[Json]:
    return [json.loads(line) for line in (HERE / "tasks" / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def harness(assets: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    flags = ("--dtype", "float32", "--kv-memory", "256MiB", "--max-model-len", "2048")
    folder = tmp_path_factory.mktemp("float32")
    running = Server(folder, assets(CHECKPOINT), "--served-model-name", "smollm2", *flags)
    try:
        yield Harness(running.wait_until_ready().url)
    finally:
        running.stop()


def check(found: list[tuple[float, bool]], expected: list[Json]) -> None:
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=NEAR)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


def test_loglikelihoods_of_continuations(harness: Harness) -> None:
    """The continuations of `last_words` are the correct ones among `choices`."""
    pairs = [harness.pair(row["question"], ending) for row in rows("choices") for ending in row["choices"]]
    expected = [score for items in REFERENCE["items"]["choices"] for score in items]
    for begin in range(0, len(pairs), 64):
        check(harness.score(pairs[begin : begin + 64]), expected[begin : begin + 64])


def test_rolling_loglikelihoods(harness: Harness) -> None:
    texts = [row["text"] for row in rows("passages")]
    found = harness.score([(harness.prefix + harness.encode(text), 1) for text in texts])
    expected = [items[0][0] for items in REFERENCE["items"]["passages"]]
    assert [score for score, _ in found] == pytest.approx(expected, abs=NEAR)


def test_generations(harness: Harness) -> None:
    before = "Q: What colour is grass?\nA: Green\n\nQ: What is 3 plus 1?\nA: 4\n\nQ: "
    prompts = [harness.encode(f"{before}{row['question']}\nA:") for row in rows("answers")]
    found = harness.complete(prompt=prompts, max_tokens=16, temperature=0, stop=["\n", harness.eos])
    assert [choice["text"] for choice in found] == [items[0] for items in REFERENCE["items"]["answers"]]


def test_lm_eval_gives_the_reference_numbers(assets: Callable[[str], Path]) -> None:
    python = os.environ.get("OCTAVO_EVAL_PYTHON")
    if not python:
        pytest.skip("OCTAVO_EVAL_PYTHON, the path of a Python with lm-eval, is not set")
    script = str(ROOT / "tools" / "lm_eval_parity.py")
    tool = [sys.executable, script, str(assets(CHECKPOINT)), "--python", python]
    options = ["--reference", str(HERE / "reference.json"), "--dtypes", "float32", "--limit", "8"]
    done = subprocess.run(
        [*tool, *options], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
