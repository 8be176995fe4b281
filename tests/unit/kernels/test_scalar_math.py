"""csrc/scalar_math.h compiled in several ways: accurate, and the same bits in every build."""

import ctypes
import math
import os
import platform
import random
import shutil
import struct
import subprocess
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import pytest

from octavo import kernels

SOURCES = [Path(folder) / "csrc" for folder in kernels.__path__ if (Path(folder) / "csrc").is_dir()]
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
pytestmark = pytest.mark.skipif(
    not (COMPILER and SOURCES), reason="needs a compiler and the kernels' sources"
)

FUNCTIONS = """
#include "scalar_math.h"
using namespace octavo;
extern "C" {
void logs(const double* x, int64_t count, double* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = natural_log(x[i]);
}
void sines(const double* x, int64_t count, double* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = sin_cos(float(x[i])).sine;
}
void cosines(const double* x, int64_t count, double* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = sin_cos(float(x[i])).cosine;
}
void rounded_up(const double* x, int64_t count, double* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = double(round_up(x[i]));
}
void fused(const double* abc, int64_t count, double* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = fused_multiply_add(abc[3 * i], abc[3 * i + 1], abc[3 * i + 2]);
}
}
"""
BUILDS = {"plain": ["-O0"], "optimised": ["-O3"]}
if platform.machine() in ("x86_64", "AMD64"):
    # `fused_multiply_add` is the instruction if the processor has it, so this compares both implementations.
    BUILDS["with the instruction"] = ["-O3", "-mavx2", "-mfma"]


class Build:
    """The functions, compiled with one set of flags."""

    def __init__(self, path: Path) -> None:
        self._functions = ctypes.CDLL(str(path))

    def __call__(self, name: str, values: Sequence[float], *, arity: int = 1) -> list[float]:
        count = len(values) // arity
        given, found = (ctypes.c_double * len(values))(*values), (ctypes.c_double * count)()
        self._functions[name](given, ctypes.c_int64(count), found)
        return list(found)


def has_the_instruction() -> bool:
    cpu = Path("/proc/cpuinfo")
    return cpu.exists() and " fma " in cpu.read_text()


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Build]:
    folder = tmp_path_factory.mktemp("scalar_math")
    (folder / "functions.cpp").write_text(FUNCTIONS)
    made = {}
    for number, (name, options) in enumerate(BUILDS.items()):
        if "-mfma" in options and not has_the_instruction():
            continue
        library = folder / f"functions{number}.so"
        fixed = ["-std=c++20", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", f"-I{SOURCES[0]}"]
        subprocess.run(
            [str(COMPILER), *fixed, *options, str(folder / "functions.cpp"), "-o", str(library)], check=True
        )
        made[name] = Build(library)
    return made


def same_in_all(
    builds: dict[str, Build], name: str, values: Sequence[float], *, arity: int = 1
) -> list[float]:
    results = {build: run(name, values, arity=arity) for build, run in builds.items()}
    found = results["plain"]
    for build, others in results.items():
        for index, (ours, theirs) in enumerate(zip(found, others, strict=True)):
            assert ours == theirs, f"{name} of {values[arity * index : arity * (index + 1)]}, {build}"
    return found


def assert_near(found: list[float], exact: list[Decimal], units: float) -> None:
    """Check the error in units in the last place (ulp) of the exact value."""
    for ours, truth in zip(found, exact, strict=True):
        assert abs(Decimal(ours) - truth) <= Decimal(units * math.ulp(float(truth))), (ours, truth)


def test_logarithm_error_is_at_most_one_ulp(builds: dict[str, Build]) -> None:
    dice = random.Random(1)
    values = [1.0, 2.0, 0.5, math.sqrt(2), math.sqrt(0.5), 5e-324, 2.0**-1022, 1.7976931348623157e308]
    values += [math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0), 1 - 2.0**-30, 1 + 2.0**-30]
    values += [math.ldexp(dice.uniform(0.5, 1.0), dice.randint(-1073, 1024)) for _ in range(1500)]
    values += [dice.random() for _ in range(500)]
    values += [(dice.randrange(1 << 52) + 0.5) * 2.0**-52 for _ in range(500)]  # as in sampling noise
    values += [1 + dice.uniform(-1, 1) * 2.0 ** -dice.randint(2, 50) for _ in range(500)]
    with localcontext() as context:
        context.prec = 45
        exact = [Decimal(value).ln() for value in values]
    found = same_in_all(builds, "logs", values)
    assert found[0] == 0.0
    assert_near(found, exact, 1.0)


def decimal_sin_cos(angle: float) -> tuple[Decimal, Decimal]:
    """Return sine and cosine to 80 digits: the Taylor series of the angle modulo a full turn."""
    pi = Decimal(
        "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534"
    )
    with localcontext() as context:
        context.prec = 80
        x = Decimal(angle).remainder_near(2 * pi)
        term, sums, power = Decimal(1), [Decimal(0), Decimal(0)], 0
        while abs(term) > Decimal("1e-70"):
            sums[power % 2] += term if power % 4 < 2 else -term
            power += 1
            term *= x / power
        return sums[1], sums[0]


def to_float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def test_sine_and_cosine_errors_are_at_most_two_ulp(builds: dict[str, Build]) -> None:
    dice = random.Random(2)
    values = [2.0**-149, to_float32(1e-30), 0.5, 1.0, 131_071.0, 2.0**27, -(2.0**27), -3.0]
    values += [to_float32(dice.uniform(-1, 1) * 2.0 ** dice.randint(-20, 27)) for _ in range(800)]
    # The floats nearest to multiples of a quarter turn: range reduction cancels nearly all of the angle.
    values += [to_float32(dice.randrange(1, 1 << dice.randint(1, 26)) * math.pi / 2) for _ in range(800)]
    sines, cosines = zip(*map(decimal_sin_cos, values), strict=True)
    assert_near(same_in_all(builds, "sines", values), list(sines), 2.0)
    assert_near(same_in_all(builds, "cosines", values), list(cosines), 2.0)
    assert same_in_all(builds, "sines", [0.0]) == [0.0]
    assert same_in_all(builds, "cosines", [0.0]) == [1.0]


def test_rounding_up(builds: dict[str, Build]) -> None:
    values = [0.0, 5e-324, 0.5, 1.0, 1.0000000000000002, 2.0**52 - 0.5, 2.0**52 + 1, 2.0**62]
    assert same_in_all(builds, "rounded_up", values) == [float(math.ceil(value)) for value in values]


def any_double(dice: random.Random) -> float:
    """Return a random double, often with few bits, so that sums are often exact ties between two doubles."""
    bits = dice.choice([1, 2, 26, 27, 52, 53, 53, 53])
    value = math.ldexp(dice.getrandbits(bits) | 1, dice.randint(-80, 80) - bits)
    return dice.choice([-1, 1]) * value


def any_three(dice: random.Random) -> list[float]:
    a, b = any_double(dice), any_double(dice)
    near = -(a * b) * dice.choice([1, 1, 1 + 2.0**-52, 2.0**-53, 2.0**-54, 2.0**53, 2.0**54, 2.0**106])
    shift = dice.choice([2.0**52, 6755399441055744.0, 1.0, 1 / 720])  # constants that sampling adds to
    return [a, b, dice.choice([any_double(dice), near, math.nextafter(near, math.inf), shift, 0.0])]


def test_fused_multiply_add_rounds_once(builds: dict[str, Build]) -> None:
    dice = random.Random(3)
    triples = [any_three(dice) for _ in range(20_000)]
    triples += [[0.0, 1.4, 6755399441055744.0], [1e-300, 1e-20, 1.0], [5e-324, 1.4426950408889634, 2.0**52]]
    found = same_in_all(builds, "fused", [value for triple in triples for value in triple], arity=3)
    for (a, b, c), ours in zip(triples, found, strict=True):
        # Python rounds the quotient of two integers once.
        assert ours == float(Fraction(a) * Fraction(b) + Fraction(c)), (a, b, c)


def test_double_rounding_would_be_detected() -> None:
    dice = random.Random(3)
    triples = [any_three(dice) for _ in range(2000)]
    wrong = [1 for a, b, c in triples if a * b + c != float(Fraction(a) * Fraction(b) + Fraction(c))]
    assert len(wrong) > 100
