"""A forward pass as one native call.

    record   the model's Python runs once, on a small made-up batch; its kernels are written down and not run
    resolve  every argument has the role that its structure declares (arguments.py): the same in every step
             (weights, KV pages), a value of the step (the number of rows, positions, ...) or a place in a
             register: what a kernel of the pass writes and others read
    run      a step brings its values; the registers get places in one piece of memory, and the tape plays

A register is a matrix with a row for each token of the step. Registers that do not live at the same time
share their place:

    kernel     norm  qkv  rope  rope  write  attend  out  ...
    x           w     r
    qkv               w    r     r      r
    query                  w                   r
    key                          w      r
    attended                                   w      r          may have x's place
"""

import bisect
import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from octavo.kernels.arguments import (
    CONSTANT,
    NUMBER,
    STEP_NUMBERS,
    Field,
    KernelArguments,
    Pointer,
    Result,
    Size,
    StepValue,
)
from octavo.kernels.library import Engine, RecordedCall
from octavo.kernels.spread import new_rows


class PatchStruct(ctypes.Structure):
    """`ov_patch` of octavo_kernels.h"""

    _fields_ = (("offset", ctypes.c_int32), ("source", ctypes.c_int32), ("addend", Size))


class TapeCallStruct(ctypes.Structure):
    """`ov_tape_call`"""

    _fields_ = (
        ("kernel", ctypes.c_int32),
        ("num_patches", ctypes.c_int32),
        ("patches", ctypes.POINTER(PatchStruct)),
        ("args", Pointer),
        ("args_bytes", Size),
    )


StepValues = Size * len(StepValue)

PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ov_tape_open": (
        ctypes.c_int,
        (
            ctypes.POINTER(TapeCallStruct),
            Size,
            Size,
            ctypes.POINTER(Size),
            Size,
            ctypes.POINTER(Pointer),
        ),
    ),
    "ov_tape_close": (None, (Pointer,)),
    "ov_tape_run": (ctypes.c_int, (Pointer, Pointer, ctypes.POINTER(Size), Size)),
}


@dataclass
class Register:
    """Memory that a kernel of the recording wrote, and when it is in use."""

    address: int  # in the recording
    row_bytes: int
    first_call: int
    last_call: int


@dataclass(frozen=True)
class Patch:
    """The argument at `offset` is the step's value, or the address of the register, plus `addend`."""

    offset: int
    source: StepValue | Register
    addend: int = 0


@dataclass
class Resolver:
    """Finds out where the arguments of a recording come from, call by call in order."""

    num_rows: int
    vectors: Mapping[StepValue, int]  # their addresses in the recording
    registers: list[Register] = field(default_factory=list)  # by address

    def resolve(self, number: int, arguments: KernelArguments) -> list[Patch]:
        return [
            Patch(arguments.offset(one.name), *self._source(number, arguments, one))
            for one in arguments.declared
            if one.role not in (NUMBER, CONSTANT)
        ]

    def _source(
        self, number: int, arguments: KernelArguments, one: Field
    ) -> tuple[StepValue, int] | tuple[Register, int]:
        """Of a field, and what is added to it."""
        value, role = getattr(arguments, one.name) or 0, one.role
        if isinstance(role, StepValue):
            if role in STEP_NUMBERS or self.vectors.get(role) == value:
                return role, 0
        else:
            register = self._register_at(value)
            if register is None and isinstance(role, Result):
                # It was just made: its rows are as far apart as they will be in its place.
                register = self._add(value, role.row_bytes(arguments), number)
            if register is not None:
                register.last_call = number
                return register, value - register.address
        raise ValueError(
            f"{arguments.kernel.name}'s {one.name} was not computed by a kernel: "
            "a tape cannot follow what torch does"
        )

    def _register_at(self, address: int) -> Register | None:
        index = bisect.bisect_right(self.registers, address, key=lambda register: register.address) - 1
        if index < 0:
            return None
        register = self.registers[index]
        return register if address < register.address + self.num_rows * register.row_bytes else None

    def _add(self, address: int, row_bytes: int, number: int) -> Register:
        register = Register(address, row_bytes, number, number)
        bisect.insort(self.registers, register, key=lambda register: register.address)
        return register


class Tape:
    """A recorded pass, with the memory of its registers. One caller at a time."""

    def __init__(
        self,
        engine: Engine,
        calls: Sequence[RecordedCall],
        vectors: Mapping[StepValue, int],
        output: torch.Tensor,
    ) -> None:
        """`vectors`: the addresses that the recorded pass was given; `output`: its result, [rows, width]."""
        self._engine = engine
        self._calls = calls  # they own the constants
        resolver = Resolver(len(output), vectors)
        patches = [resolver.resolve(number, call.arguments) for number, call in enumerate(calls)]
        registers = [r for r in resolver.registers if r.address != output.data_ptr()]
        is_new = output.stride() == new_rows(output.shape, output.dtype).stride()
        if len(registers) == len(resolver.registers) or not is_new:
            raise ValueError("the result of a recorded pass must be what a kernel wrote")
        places = share_places(registers)
        sources = {
            id(register): len(StepValue) + place for register, place in zip(registers, places, strict=True)
        }
        row_bytes = (Size * len(set(places)))()
        for register, place in zip(registers, places, strict=True):
            row_bytes[place] = register.row_bytes
        self._output_width, self._output_dtype = output.shape[1], output.dtype
        self._handle = Pointer()
        structs, _alive = _call_structs(calls, patches, sources)
        engine.library.check(
            engine.library.functions.ov_tape_open(
                structs, len(calls), len(StepValue), row_bytes, len(row_bytes), ctypes.byref(self._handle)
            )
        )

    def run(self, num_rows: int, num_sequences: int, addresses: Sequence[int]) -> torch.Tensor:
        """The result of the pass, [num_rows, width]. `addresses` are those of the `STEP_VECTORS`."""
        output = new_rows((num_rows, self._output_width), self._output_dtype)
        values = StepValues(num_rows, num_sequences, *addresses, output.data_ptr())
        library = self._engine.library
        library.check(library.functions.ov_tape_run(self._engine.handle, self._handle, values, len(values)))
        return output

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._engine.library.functions.ov_tape_close(self._handle)


def share_places(registers: Sequence[Register]) -> list[int]:
    """For each register the number of its place. Those that share one have the same size, and one is written
    only by a call after the last that reads the other."""
    in_use: list[Register] = []  # for each place, the last register that has it
    places = {}
    for register in sorted(registers, key=lambda register: register.first_call):
        free = (
            place
            for place, before in enumerate(in_use)
            if before.row_bytes == register.row_bytes and before.last_call < register.first_call
        )
        place = next(free, len(in_use))
        in_use[place : place + 1] = [register]
        places[register.address] = place
    return [places[register.address] for register in registers]


def _call_structs(
    calls: Sequence[RecordedCall], patches: Sequence[Sequence[Patch]], sources: Mapping[int, int]
) -> tuple[Any, list[Any]]:
    """The calls as the library takes them, and what they point to. `sources`: by the register's identity."""
    structs, alive = (TapeCallStruct * len(calls))(), []
    for struct, call, patched in zip(structs, calls, patches, strict=True):
        array = (PatchStruct * len(patched))()
        for index, patch in enumerate(patched):
            is_step = isinstance(patch.source, StepValue)
            source = patch.source if is_step else sources.get(id(patch.source), StepValue.OUTPUT)
            array[index] = PatchStruct(patch.offset, source, patch.addend)
        struct.kernel, struct.num_patches, struct.patches = call.arguments.kernel, len(patched), array
        struct.args, struct.args_bytes = ctypes.addressof(call.arguments), ctypes.sizeof(call.arguments)
        alive.append(array)
    return structs, alive
