"""The formats in `FORMATS`, in the gguf package and in the kernels agree."""

import re
from pathlib import Path

import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind

from octavo.kernels.library import Format
from octavo.weight_format import FORMATS

HEADER = Path(__file__).resolve().parents[2] / "src/octavo/kernels/csrc/octavo_kernels.h"


def test_weight_blocks_have_the_sizes_of_gguf() -> None:
    shared = {name: form for name, form in FORMATS.items() if name in Kind.__members__}
    assert len(shared) == 13
    for name, form in shared.items():
        assert (form.block_k, form.block_bytes) == GGML_QUANT_SIZES[Kind[name]]


def test_our_own_weight_blocks_are_a_scale_and_codes() -> None:
    for size in (32, 128):
        assert FORMATS[f"INT4_{size}"].block_bytes == 4 + 1 + size // 2
        assert FORMATS[f"INT8_{size}"].block_bytes == FORMATS[f"FP8_{size}"].block_bytes == 4 + size


def test_format_numbers_match_the_kernel_header() -> None:
    numbers = {
        name.removeprefix("FORMAT_"): int(number)
        for name, number in re.findall(r"\bOV_(\w+) = (\d+)", HEADER.read_text())
    }
    assert set(Format.__members__) == {"BF16", "F32", *FORMATS}
    assert {form.name: form.value for form in Format} == {form.name: numbers[form.name] for form in Format}


def test_a_row_is_a_whole_number_of_weight_blocks() -> None:
    assert FORMATS["Q4_K"].row_bytes(512) == 288
    with pytest.raises(ValueError, match="576 weights cannot be split into Q4_K blocks of 256"):
        FORMATS["Q4_K"].row_bytes(576)
