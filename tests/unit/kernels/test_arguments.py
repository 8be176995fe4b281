"""Argument structures of the C interface: every field has a role, and layouts match octavo_kernels.h."""

import ctypes
import subprocess
from collections.abc import Iterator

import pytest

from golden.program import SOURCES, compiler
from octavo.kernels import attention, gemm, library, rows, sampling, tape
from octavo.kernels.arguments import (
    CONSTANT,
    INPUT,
    NUMBER,
    Field,
    Kernel,
    KernelArguments,
    Pointer,
    ResultField,
    Size,
    StepValue,
    c_fields,
)
from octavo.kernels.library import Isa

C_NAMES = {
    attention.KVBlocksStruct: "ov_kv_blocks",
    library.TimeStruct: "ov_time",
    library.TimesStruct: "ov_times",
    rows.SoftcapArguments: "ov_softcap_args",
    sampling.Sampled: "ov_sampled",
    sampling.SampleRowArguments: "ov_sample_row",
    tape.PatchStruct: "ov_patch",
    tape.TapeCallStruct: "ov_tape_call",
}


def structures() -> Iterator[type[ctypes.Structure]]:
    for module in (attention, gemm, library, rows, sampling, tape):
        for value in vars(module).values():
            is_structure = isinstance(value, type) and issubclass(value, ctypes.Structure)
            if is_structure and value.__module__ == module.__name__:
                yield value


def c_name(structure: type[ctypes.Structure]) -> str:
    if issubclass(structure, KernelArguments):
        return f"ov_{structure.kernel.name.lower()}_args"
    return C_NAMES[structure]


def test_every_kernel_has_an_argument_structure() -> None:
    kernels = [one.kernel for one in structures() if issubclass(one, KernelArguments)]
    assert sorted(kernels) == sorted(Kernel)


def test_structures_match_the_header() -> None:
    command = compiler()
    if command is None:
        pytest.skip("no compiler")
    claims = [
        f"offsetof({c_name(one)}, {name}) == {getattr(one, name).offset}"
        f" && sizeof({c_name(one)}::{name}) == {ctypes.sizeof(kind)}"
        for one in structures()
        for name, kind, *_ in one._fields_
    ]
    claims += [f"sizeof({c_name(one)}) == {ctypes.sizeof(one)}" for one in structures()]
    claims += [f"OV_{member.name} == {member.value}" for members in (Kernel, Isa) for member in members]
    source = ["#include <cstddef>", '#include "octavo_kernels.h"']
    source += [f'static_assert({claim}, "");' for claim in claims]
    done = subprocess.run(
        [command, "-std=c++20", "-fsyntax-only", "-I", str(SOURCES), "-x", "c++", "-"],
        input="\n".join(source),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_field_without_a_role_is_rejected() -> None:
    with pytest.raises(TypeError, match="with its role"):

        class _Forgotten(KernelArguments):
            kernel = Kernel.ADD
            declared = (Field("x", Pointer, INPUT),)
            _fields_ = (*c_fields(declared), ("bias", Pointer))

    with pytest.raises(TypeError, match="y_stride"):

        class _Strideless(KernelArguments):
            kernel = Kernel.ADD
            declared = (
                Field("dtype", ctypes.c_int32, NUMBER),
                Field("y", Pointer, ResultField("y_stride", "dtype")),
            )
            _fields_ = c_fields(declared)


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        (Pointer, NUMBER),
        (Pointer, StepValue.NUM_ROWS),
        (Pointer, StepValue.OUTPUT),
        (Size, CONSTANT),
        (Size, INPUT),
        (Size, ResultField("stride", "dtype")),
        (Size, StepValue.POSITIONS),
        (ctypes.c_int32, StepValue.NUM_ROWS),  # the tape writes eight bytes
        (attention.KVBlocksStruct, INPUT),
    ],
)
def test_a_role_must_fit_the_field_type(kind: type, role: ResultField) -> None:
    with pytest.raises(TypeError, match="cannot be"):
        Field("field", kind, role)
