"""A request has the same answer on every instruction set: tokens, logprobs and fingerprint.

test_purity.py runs requests in different ways on one instruction set at a time. This file compares the
instruction sets with each other, on the same requests.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from full_size import FULL
from octavo.checkpoint import open_checkpoint
from octavo.kernels import gemm
from octavo.kernels.gemm import multiply
from octavo.kernels.library import Isa
from octavo.text.tokenizer import Tokenizer
from purity.test_broken_rules import one_chain_for_many_rows
from purity.test_purity import QWEN, SMOLLM2, Record, available_isas
from purity.ways import Answers, Request, Run, Way, loaded, mismatch, together
from purity.workloads import TEXT, few_requests, real_requests, tiny_requests, two_requests

pytestmark = pytest.mark.usefixtures("untraced")  # other tests cover this code


@pytest.fixture
def best_first() -> list[str]:
    if not available_isas():
        pytest.skip("no native library was built when the package was installed")
    return available_isas()[::-1]


TAPED = Way(together, chunk=512, caching=False)
EAGER = Way(together, chunk=512, caching=False, tape=False)


@dataclass(frozen=True)
class Setup:
    path: Path
    dtype: str
    way: Way = TAPED
    kv_memory: str = "64MiB"

    def run(self, isa: str, requests: Sequence[Request], expected: Answers | None = None) -> tuple[Run, str]:
        """Return the answers and their fingerprint. Tokens are drafted if the answers are expected."""
        way = replace(self.way, drafts=expected is not None)
        with loaded(self.path, self.dtype, isa, kv_memory=self.kv_memory) as model:
            return model.run(way, requests, expected), model._llm(way).facts.system_fingerprint


def differences(
    setup: Setup, sets: Mapping[str, Sequence[int]], requests: Sequence[Request]
) -> tuple[int, list[str]]:
    """Return the number of compared answers and the differences. `sets`: the requests for each instruction
    set; the first runs all of them, and the others, which draft tokens, are compared with it."""
    (best, _), *others = sets.items()
    expected, fingerprint = setup.run(best, requests)
    compared, problems = 0, []
    for isa, numbers in others:
        some = [requests[number] for number in numbers]
        wanted = expected.only(numbers)
        found, other_fingerprint = setup.run(isa, some, wanted.answers)
        problem = mismatch(found, wanted, some)
        if problem is not None:
            problems.append(f"{isa} is not {best}: {problem}")
        if other_fingerprint != fingerprint:
            problems.append(f"{isa}: {other_fingerprint}, {best}: {fingerprint}")
        compared += sum(map(len, found.answers))
    return compared, problems


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_family(
    family: Callable[[str], Path],
    every_family: str,
    dtype: str,
    best_first: list[str],
    record_property: Record,
) -> None:
    requests = tiny_requests()
    sets = {isa: range(len(requests)) for isa in best_first}
    compared, problems = differences(Setup(family(every_family), dtype), sets, requests)
    assert not problems, problems
    record_property("purity", f"{every_family}, {dtype}: {compared} answers equal on {', '.join(best_first)}")


REAL = [
    (QWEN, "bfloat16"),
    (SMOLLM2, "bfloat16"),
    (SMOLLM2, "float32"),
    *([(QWEN, "float32")] if FULL else []),
]


@pytest.mark.assets
@pytest.mark.parametrize(("name", "dtype"), REAL)
def test_real_models(
    assets: Callable[[str], Path], name: str, dtype: str, best_first: list[str], record_property: Record
) -> None:
    path = assets(name)
    token_ids = Tokenizer(open_checkpoint(str(path)).text).encode(TEXT.read_text())
    if FULL:
        requests = real_requests(token_ids)
        sets: dict[str, Sequence[int]] = {isa: range(len(requests)) for isa in best_first}
    else:  # plain C++ needs half a second per token with half a billion weights
        requests = [*two_requests(token_ids), *few_requests(token_ids), *real_requests(token_ids)[1:16:5]]
        sets = {isa: range(2 if isa == "portable" else len(requests)) for isa in best_first}
    compared, problems = differences(Setup(path, dtype, kv_memory="256MiB"), sets, requests)
    assert not problems, problems
    record_property("purity", f"{path.stem}, {dtype}: {compared} answers equal on {', '.join(best_first)}")


def test_a_different_summation_order_is_detected(
    family: Callable[[str], Path], best_first: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(best_first) < 2:
        pytest.skip("needs two instruction sets")
    one_chain_for_many_rows(monkeypatch)
    broken = gemm.multiply
    slow = Isa[best_first[-1].upper()]
    monkeypatch.setattr(
        gemm, "multiply", lambda pool, *rest: (broken if pool.isa == slow else multiply)(pool, *rest)
    )
    requests = tiny_requests()[1::4]
    sets = {isa: range(len(requests)) for isa in (best_first[0], best_first[-1])}
    # A tape would not call the Python function.
    _, problems = differences(Setup(family("llama"), "bfloat16", EAGER), sets, requests)
    assert problems
