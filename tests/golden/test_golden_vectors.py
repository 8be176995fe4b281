"""Every instruction set computes the golden vectors: all arithmetic has one definition."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from golden.engine_vectors import DTYPES, dequantised_hashes, engine_hashes
from golden.program import ISAS, ROOT, Golden, Run, problem
from octavo.kernels.library import Isa, KernelLibrary

pytestmark = pytest.mark.xdist_group("golden")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden-checkpoints")


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_has_the_golden_bits(
    golden: Golden, program: Path, run: Callable[..., Run], isa: str
) -> None:
    found = run(program, isa)
    assert (message := problem(golden.hashes, found.hashes)) is None, message


@pytest.mark.parametrize("isa", ISAS)
def test_results_do_not_depend_on_the_fp_mode_of_the_calling_thread(
    golden: Golden, program: Path, run: Callable[..., Run], isa: str
) -> None:
    """A library linked with -ffast-math changes the mode of the thread that loads it."""
    found = run(program, isa, "nondefault_fp")
    assert (message := problem(golden.hashes, found.hashes)) is None, message


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_has_the_golden_answers(
    golden: Golden, installed_library: Path, checkpoints: Path, isa: str, dtype: str
) -> None:
    """The whole engine, every family: the code in Python is part of the definition, too."""
    if not KernelLibrary(installed_library).has_isa(Isa[isa.upper()]):
        pytest.skip(f"this processor has no {isa}")
    found = engine_hashes(checkpoints, dtype, kernels=isa)
    expected = {name: golden.engine[name] for name in golden.engine if name.endswith(f"/{dtype}")}
    assert (message := problem(expected, found)) is None, message


@pytest.mark.usefixtures("installed_library")
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_results_do_not_depend_on_the_instructions_of_torch(
    golden: Golden, tmp_path: Path, capability: str
) -> None:
    """Torch selects instructions by processor, and its functions differ in the last bits between them."""
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "golden.engine_vectors", str(tmp_path), "float32", "auto"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = {name: golden.engine[name] for name in golden.engine if name.endswith("/float32")}
    assert (message := problem(expected, json.loads(done.stdout.splitlines()[-1]))) is None, message


def test_quantised_weights_are_widened_to_the_golden_bits(golden: Golden, tmp_path: Path) -> None:
    expected = {name: golden.engine[name] for name in golden.engine if name.startswith("dequantised/")}
    assert (message := problem(expected, dequantised_hashes(tmp_path))) is None, message


def test_the_file_has_the_arithmetic_version_of_the_library(golden: Golden, installed_library: Path) -> None:
    assert KernelLibrary(installed_library).arithmetic == golden.arithmetic


def test_all_hashes_differ(golden: Golden) -> None:
    """Equal hashes would mean that a case does not depend on the kernels: all results are 0, for example."""
    assert len({*golden.hashes.values(), *golden.engine.values()}) == len(golden.hashes) + len(golden.engine)


def test_the_documentation_lists_the_versions(installed_library: Path) -> None:
    law = (ROOT / "docs/law.md").read_text()
    section = law.partition("\n## Arithmetic versions\n")[2].partition("\n## ")[0]
    listed = [int(number) for number in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)]
    assert listed == list(range(1, KernelLibrary(installed_library).arithmetic + 1))
