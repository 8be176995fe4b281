"""The guarantee of docs/law.md: tokens and logprobs are bit-identical to the plain run under any conditions.

The plain run computes a request alone, without chunks or cache, on one thread, with every kernel called from
Python. A mismatch names the first layer and position whose numbers differ.

`ways.py` defines the other ways to run requests. Every model is tested with every element of the guarantee at
least once, and with most pairs of elements. OCTAVO_TEST_FULL=1 tests all combinations of ways for every
model, dtype and instruction set, which takes hours.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import pytest

from full_size import FULL
from octavo.bench.random_gguf import write_random_gguf
from octavo.checkpoint import open_checkpoint
from octavo.kernels.library import KernelLibrary, find_library
from octavo.text.tokenizer import Tokenizer
from purity.ways import (
    ALL_WAYS,
    MORE_WAYS,
    PLAIN,
    WAYS,
    Answers,
    Model,
    Request,
    Way,
    loaded,
    mismatch,
)
from purity.workloads import TEXT, real_requests, tiny_requests
from test_kept_weights import CONFIG, GGUF_FORMATS

# Other tests cover this code.
pytestmark = pytest.mark.usefixtures("untraced")

SHORT = 64  # tokens: the maximum length for one step per token

Record = Callable[[str, object], None]


def available_isas() -> list[str]:
    path = find_library()
    return [] if path is None else [isa.name.lower() for isa in KernelLibrary(path).isas]


def compare(
    model: Model,
    requests: Sequence[Request],
    ways: Sequence[Way],
    *,
    whole: bool,
    plain_model: Model | None = None,
) -> tuple[int, Answers, set[int]]:
    """Return the number of compared answers, the plain answers (of `plain_model` if given), and the batch
    sizes that occurred."""
    plain = (plain_model or model).run(PLAIN, requests)
    compared, sizes = 0, set[int]()
    for way in ways:
        numbers = list(range(len(requests)) if whole else range(way.first, len(requests), way.every))
        if way.chunk == 1 and not FULL:
            numbers = [number for number in numbers if requests[number].num_tokens <= SHORT]
        some = [requests[number] for number in numbers]
        expected = plain.only(numbers)
        found = model.run(way, some, expected.answers)
        if way.drafts or way.draft_model:
            num_tokens = sum(len(answer.token_ids) for answers in found.answers for answer in answers)
            assert min(found.num_accepted, found.num_rejected) > num_tokens // 40, (
                way,
                found.num_accepted,
                found.num_rejected,
            )
        problem = mismatch(found, expected, some)
        assert problem is None, f"{model.path.name}, {model.dtype}, {model.kernels}, {way}: {problem}"
        compared += sum(map(len, found.answers))
        sizes |= found.batch_sizes
    return compared, plain.answers, sizes


SMOLLM2 = "smollm2-135m-instruct-q4_1.gguf"
QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"


# The longest first, so that no core idles at the end. test_instruction_sets.py has the other sets. The larger
# model in float32 takes minutes.
REAL = [
    (name, dtype, isa)
    for name in (QWEN, SMOLLM2)
    for dtype in ("float32", "bfloat16")
    for isa in available_isas()
    if FULL or (isa == available_isas()[-1] and (name, dtype) != (QWEN, "float32"))
]


@pytest.mark.assets
@pytest.mark.parametrize(("name", "dtype", "isa"), REAL)
def test_real_models(
    assets: Callable[[str], Path], name: str, dtype: str, isa: str, record_property: Record
) -> None:
    path = assets(name)
    token_ids = Tokenizer(open_checkpoint(str(path)).text).encode(TEXT.read_text())
    with loaded(path, dtype, isa, kv_memory="256MiB") as model:
        if FULL:
            compared, _, _ = compare(model, real_requests(token_ids, max_tokens=32), ALL_WAYS, whole=True)
        else:
            step = 2 if dtype == "float32" or name == QWEN else 1  # they take twice as long
            compared, _, sizes = compare(model, real_requests(token_ids)[::step], WAYS, whole=False)
            assert {1, 2, 32 // step} <= sizes, sizes
    record_property("purity", f"{path.stem}, {dtype}, {isa}: {compared} answers")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("isa", available_isas())
def test_every_family_on_every_instruction_set(
    family: Callable[[str], Path], every_family: str, isa: str, dtype: str, record_property: Record
) -> None:
    """All requests in every way on the best instruction set. The others run half of the requests, and some of
    these in each way: test_instruction_sets.py shows that all instruction sets agree."""
    is_whole = FULL or isa == available_isas()[-1]
    ways = ALL_WAYS if FULL else WAYS + MORE_WAYS if is_whole else WAYS
    with loaded(family(every_family), dtype, isa) as model:
        requests = tiny_requests() if is_whole else tiny_requests()[1::2]
        compared, answers, sizes = compare(model, requests, ways, whole=is_whole)
    assert (
        len({choice.text for choices in answers for choice in choices}) >= len(requests) - 2
    )  # not all answers are the same
    assert not is_whole or sizes >= set(range(1, 33)), sizes
    record_property("purity", f"{every_family}, {dtype}, {isa}: {compared} answers")


@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
@pytest.mark.parametrize("isa", available_isas())
def test_quantised_weights_answer_like_widened_weights_in_every_way(
    family: Callable[[str], Path], isa: str, scheme: str | None, tmp_path: Path, record_property: Record
) -> None:
    """All GGUF formats in one model, and a model that is quantised at load."""
    is_whole = FULL or isa == available_isas()[-1]
    ways = ALL_WAYS if FULL else WAYS + MORE_WAYS if is_whole else WAYS
    if scheme is None:
        path = tmp_path / "every-format.gguf"
        turns = cycle(GGUF_FORMATS)
        write_random_gguf(path, CONFIG | {"max_position_embeddings": 1024}, lambda _: next(turns))
    else:
        path = family("llama")
    requests = tiny_requests() if is_whole else tiny_requests()[1::2]
    with (
        loaded(path, "bfloat16", isa, quantize=scheme, weights="widened") as widened,
        loaded(path, "bfloat16", isa, quantize=scheme) as kept,
    ):
        compared, _, _ = compare(kept, requests, ways, whole=is_whole, plain_model=widened)
        formats = set(kept._llm(WAYS[0]).facts.weight_bytes)
        assert set(widened._llm(PLAIN).facts.weight_bytes) <= {"bfloat16", "float32"}
    assert formats >= set(GGUF_FORMATS) if scheme is None else any(name.startswith("INT") for name in formats)
    record_property("purity", f"{scheme or 'GGUF'}, {isa}: {compared} answers")
