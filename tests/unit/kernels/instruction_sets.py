"""The instruction sets of this processor architecture. `open_pool` skips those that are unavailable."""

import platform

from octavo.kernels.library import Isa

OF_ARM = (Isa.PORTABLE, Isa.NEON)
OF_X86 = (Isa.PORTABLE, Isa.AVX2, Isa.AVX512, Isa.AMX)
ISAS = OF_ARM if platform.machine() in ("aarch64", "arm64") else OF_X86
VECTOR_ISAS = tuple(isa for isa in ISAS if isa != Isa.AMX)  # row and sampling kernels do not use tiles
