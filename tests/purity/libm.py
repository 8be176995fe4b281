"""Names of the C library's math functions, and a library that intercepts and can poison them."""

import os
import shutil
import subprocess
from pathlib import Path

# Poisoned are the functions whose last bit differs between C libraries, and the fused multiply-add. Others,
# such as `ceil`, are not: they have one correct result, and Python itself needs them.
OF_ONE = """acos acosh asin asinh atan atanh cbrt cos cosh erf erfc exp exp10 exp2 expm1 lgamma
    log log10 log1p log2 sin sinh tan tanh tgamma"""
OF_TWO = "atan2 hypot pow"
OF_THREE = "fma"
OTHERS = """ceil copysign drem fabs fdim floor fmax fmin fmod frexp gamma ilogb j0 j1 jn ldexp llrint llround
    logb lrint lround modf nan nearbyint nextafter nexttoward pow10 remainder remquo rint round roundeven
    scalb scalbln scalbn significand sincos sqrt trunc y0 y1 yn"""
NAMES = frozenset(
    name + form
    for names in (OF_ONE, OF_TWO, OF_THREE, OTHERS)
    for name in names.split()
    for form in ("", "f", "l")
)

SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>

static atomic_int is_poisoned;
static atomic_long num_calls;
static const char* _Atomic last_name = "";

void poison(int on) { is_poisoned = on; }
long poisoned_calls(void) { return num_calls; }
const char* last_poisoned_call(void) { return last_name; }

#define DEFINE(type, name, parameters, arguments)                  \\
  type name parameters {                                           \\
    if (is_poisoned) {                                             \\
      ++num_calls;                                                 \\
      last_name = #name;                                           \\
      return (type)__builtin_nan("");                              \\
    }                                                              \\
    return ((type(*) parameters)dlsym(RTLD_NEXT, #name))arguments; \\
  }
#define SINCOS(type, name)                                                             \\
  void name(type x, type* sine, type* cosine) {                                        \\
    if (is_poisoned) {                                                                 \\
      ++num_calls;                                                                     \\
      last_name = #name;                                                               \\
      *sine = *cosine = (type)__builtin_nan("");                                       \\
    } else {                                                                           \\
      ((void (*)(type, type*, type*))dlsym(RTLD_NEXT, #name))(x, sine, cosine);        \\
    }                                                                                  \\
  }
SINCOS(double, sincos)
SINCOS(float, sincosf)
"""


def _source() -> str:
    forms = (("double", ""), ("float", "f"))
    lines = [SOURCE]
    for names, letters in ((OF_ONE, "x"), (OF_TWO, "xy"), (OF_THREE, "xyz")):
        for name in names.split():
            for kind, form in forms:
                parameters = ", ".join(f"{kind} {letter}" for letter in letters)
                lines.append(f"DEFINE({kind}, {name}{form}, ({parameters}), ({', '.join(letters)}))")
    return "\n".join(lines) + "\n"


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


def build_poison(folder: Path) -> Path:
    """Build a library for LD_PRELOAD that intercepts poisoned functions in the whole process."""
    source, library = folder / "poison.c", folder / "poison.so"
    source.write_text(_source())
    options = ["-O1", "-w", "-fno-builtin", "-shared", "-fPIC"]
    subprocess.run([str(compiler()), *options, str(source), "-o", str(library), "-ldl"], check=True)
    return library
