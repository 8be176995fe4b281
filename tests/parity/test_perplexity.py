"""The cost of bfloat16: perplexity on a fixed text, compared with transformers in float32 on the same file.

tests/data/prose.txt is a frozen copy of this project's README, docs and docstrings from when the test was
written. It need not be kept up to date. Its first 20,480 SmolLM2 tokens are scored in windows of 1,024, each
separately from its second token on; a quarter of them in CI.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from full_size import FULL
from octavo import LLM, SamplingParams
from parity.oracle import oracle_model

WINDOW = 1024
# Transformers needs a minute or two for all windows in float32, so its results are recorded here: the mean
# loss of each window. The test recomputes a few windows.
LOSSES = [
    *(3.226222, 3.778782, 4.470500, 3.904023, 3.990273, 3.919224, 4.360023, 4.464604, 4.114105, 4.085867),
    *(3.876658, 4.004515, 4.242475, 4.084977, 4.161106, 3.808801, 4.300858, 4.398235, 4.079338, 4.238959),
]
NUM_WINDOWS = len(LOSSES) if FULL else 5
COMPUTED_ANEW = (0, 9, 19) if FULL else (0, 4)


def perplexity(losses: Sequence[float]) -> float:
    return math.exp(sum(losses) / len(losses))


def octavo_losses(file: Path, windows: Sequence[list[int]], dtype: str) -> list[float]:
    with LLM(str(file), dtype=dtype, kv_memory="256MiB", prefix_caching=False, progress=False) as llm:
        outputs = llm.generate(windows, SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0))
    scores = [[score.logprob for score in output.prompt_logprobs or ()] for output in outputs]
    assert {len(window) for window in scores} == {WINDOW - 1}
    return [-sum(window) / len(window) for window in scores]


@torch.inference_mode()
def transformers_losses(file: Path, windows: Sequence[list[int]]) -> list[float]:
    model = oracle_model(file)
    batches = [torch.tensor([window]) for window in windows]
    return [
        torch.nn.functional.cross_entropy(model(ids).logits[0, :-1].double(), ids[0, 1:]).item()
        for ids in batches
    ]


@pytest.mark.assets
@pytest.mark.xdist_group("smollm2-oracle")
def test_perplexity_of_smollm2(
    assets: Callable[[str], Path], record_property: Callable[[str, object], None]
) -> None:
    from octavo.checkpoint import open_checkpoint
    from octavo.text.tokenizer import Tokenizer

    file = assets("smollm2-135m-instruct-q4_1.gguf")
    text = (Path(__file__).parents[1] / "data/prose.txt").read_text(encoding="utf-8")
    token_ids = Tokenizer(open_checkpoint(str(file)).text).encode(text)
    windows = [token_ids[WINDOW * number : WINDOW * (number + 1)] for number in range(NUM_WINDOWS)]
    assert sum(map(len, windows)) == NUM_WINDOWS * WINDOW
    few = [windows[number] for number in COMPUTED_ANEW]

    anew = transformers_losses(file, few)
    assert anew == pytest.approx([LOSSES[number] for number in COMPUTED_ANEW], abs=1e-4)
    assert octavo_losses(file, few, "float32") == pytest.approx(anew, abs=1e-4)

    found = perplexity(octavo_losses(file, windows, "bfloat16"))
    expected = perplexity(LOSSES[:NUM_WINDOWS])
    record_property("perplexity", f"transformers, float32: {expected:.4f}")
    record_property("perplexity", f"octavo, bfloat16: {found:.4f} ({found / expected - 1:+.3%})")
    assert found == pytest.approx(expected, rel=0.005)
