"""On the native path no number comes from torch's or the C library's arithmetic.

Such a number could differ on another machine. On this path torch only allocates and moves memory; the kernels
compute everything else.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from octavo import LLM
from octavo.kernels.library import find_library
from octavo.plan import StepPlan, StepResult
from purity import libm, poisoned
from purity.test_purity import available_isas

LIBRARY = find_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no native library was built")

# Operations that allocate memory, view it, copy it, or fill it with a given number.
MOVES = frozenset(
    {
        "aten::alias",
        "aten::cat",
        "aten::detach",
        "aten::detach_",
        "aten::empty",
        "aten::fill_",
        "aten::flatten",
        "aten::index",
        "aten::item",
        "aten::lift_fresh",
        "aten::narrow",
        "aten::new_zeros",
        "aten::select",
        "aten::slice",
        "aten::split_with_sizes",
        "aten::unsqueeze",
        "aten::view",
        "aten::_local_scalar_dense",
    }
)


COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::to"})  # they round if the dtype changes


class Watch(TorchDispatchMode):
    """Records the torch operations that may compute something.

    An exception would show only the first of them, and the engine would turn it into a failed request.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_moves = 0
        self.computed: set[str] = set()

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, result = func._schema.name, func(*args, **(kwargs or {}))
        dtypes = {value.dtype for value in (*args, result) if isinstance(value, torch.Tensor)}
        if name in MOVES or (name in COPIES and len(dtypes) == 1):
            self.num_moves += 1
        else:
            self.computed.add(f"{name} {sorted(map(str, dtypes))}")
        return result


def watched_steps(checkpoint: Path, *, dtype: str, kernels: str = "auto", tape: bool = True) -> Watch:
    """Return the torch operations that an engine's steps use."""
    llm = LLM(
        str(checkpoint),
        dtype=dtype,
        kernels=kernels,
        threads=2,
        tape=tape,
        kv_memory="16MiB",
        progress=False,
    )
    core = llm._channel._open_core
    execute, watch = core._execute, Watch()

    def watched(plan: StepPlan) -> StepResult:
        with watch:
            return execute(plan)

    core._execute = watched
    try:
        outputs = llm.generate(poisoned.PROMPTS, poisoned.PARAMS)
    finally:
        llm.close()
    assert all(len(choice.token_ids) == poisoned.TOKENS for output in outputs for choice in output.choices)
    return watch


@pytest.mark.parametrize("tape", [True, False], ids=["taped", "eager"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_use_no_torch_arithmetic(
    family: Callable[[str], Path], name: str, dtype: str, tape: bool
) -> None:
    watch = watched_steps(family(name), dtype=dtype, tape=tape)
    assert not watch.computed
    assert watch.num_moves > 0


def test_torch_arithmetic_would_be_detected(family: Callable[[str], Path]) -> None:
    computed = watched_steps(family("gemma3"), dtype="float32", kernels="torch").computed
    found = {name.split()[0] for name in computed}
    assert {"aten::linear", "aten::cos", "aten::tanh", "aten::log"} <= found


def names_of(library: Path) -> set[str]:
    """Return the names of a library's undefined functions, without versions."""
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_kernels_call_no_math_functions_of_the_c_library() -> None:
    assert LIBRARY is not None
    names = names_of(LIBRARY)
    assert "memcpy" in names
    assert sorted(names & libm.NAMES) == []


@pytest.fixture(scope="module")
def poison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or libm.compiler() is None:
        pytest.skip("needs a compiler and a system that supports LD_PRELOAD")
    return libm.build_poison(tmp_path_factory.mktemp("poison"))


@pytest.mark.parametrize(("name", "isas"), [("llama", available_isas()), ("gemma3", available_isas()[-1:])])
def test_a_poisoned_c_library_changes_no_bit(
    poison: Path, family: Callable[[str], Path], name: str, isas: list[str]
) -> None:
    """Covers everything from reading the checkpoint to the logprobs."""
    child = subprocess.run(
        [sys.executable, poisoned.__file__, str(poison), str(family(name)), *isas],
        env={**os.environ, "LD_PRELOAD": str(poison), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    reports: list[poisoned.PoisonReport] = json.loads(child.stdout)
    assert [one["isa"] for one in reports] == isas
    for one in reports:
        assert one["works"]
        assert one["num_tokens"] == len(poisoned.PROMPTS) * poisoned.TOKENS
        called = f"{one['isa']}: {one['calls']} poisoned calls, the last of {one['last']}"
        assert one["poisoned"] == one["plain"], called
