"""The minimum logprob is defined once; the native kernel and the torch sampler both use it."""

import math
import re
from pathlib import Path

import pytest
import torch

import octavo
from octavo.kernels import sampling as kernel
from octavo.kernels.library import Isa, KernelPool, find_library
from octavo.kernels.loading import load_kernels
from octavo.protocol import LOGPROB_FLOOR
from octavo.sampling import NativeSampler, score_rows
from octavo.server.openai.logprobs import finite

SOURCE = Path(octavo.__file__).parent
CODE = {".py", ".cpp", ".h"}
LITERAL = re.compile(rf"-{abs(LOGPROB_FLOOR):.0f}(\.0*)?f?(?![\d.])")
ROW = torch.tensor([[0.0, -math.inf, 1.0]])


@pytest.fixture
def pool() -> KernelPool:
    path = find_library()
    if path is None:
        pytest.skip("no native library was built when the package was installed")
    return KernelPool(load_kernels(path), 1, Isa.PORTABLE)


def test_the_floor_is_defined_on_one_source_line() -> None:
    lines = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*"))
        if path.suffix in CODE
        for line in path.read_text(encoding="utf-8").splitlines()
        if LITERAL.search(line)
    ]
    assert lines == [f"protocol.py: LOGPROB_FLOOR = {LOGPROB_FLOOR}"]


def test_kernel_torch_and_server_agree_on_a_token_of_zero_probability(pool: KernelPool) -> None:
    (native,), (plain,) = NativeSampler(pool).score_rows(ROW, [1], top=3), score_rows(ROW, [1], top=3)
    assert native.logprob == plain.logprob == finite(-math.inf) == LOGPROB_FLOOR
    assert native.top[-1] == plain.top[-1] == (1, LOGPROB_FLOOR)


def test_the_kernel_has_no_floor_of_its_own(pool: KernelPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "LOGPROB_FLOOR", -2.5)
    (scored,) = NativeSampler(pool).score_rows(ROW, [1], top=0)
    assert scored.logprob == -2.5
