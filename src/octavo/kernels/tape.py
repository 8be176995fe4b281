"""A forward pass as one native call.

    record   the model's Python code runs once on a small dummy batch; its kernels are recorded and not run
    resolve  every argument has the role that its structure declares (arguments.py): the same in every step
             (weights, KV blocks), a value of the step (the number of rows, positions, ...) or an address in a
             register, which one kernel of the forward pass writes and others read
    run      with the values of a step, the registers are placed in one allocation and the calls are replayed

A register is a matrix with one row per token of the step. Registers that are not live at the same time share
memory:

    kernel     norm  qkv  rope  rope  write  attend  out  ...
    x           w     r
    qkv               w    r     r      r
    query                  w                   r
    key                          w      r
    attended                                   w      r          may share memory with x
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
    ResultField,
    Size,
    StepValue,
)
from octavo.kernels.library import KernelPool, RecordedCall
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
    """Memory that a kernel of the recording writes, and the range of calls that use it."""

    address: int  # in the recording
    row_bytes: int
    first_call: int
    last_call: int


@dataclass(frozen=True)
class Patch:
    """Sets the argument at `offset` to a value of the step, or to the address of a register plus `addend`."""

    offset: int
    source: StepValue | Register
    addend: int = 0


@dataclass
class Resolver:
    """Determines where the arguments of a recording come from. Calls must be resolved in order."""

    num_rows: int
    vectors: Mapping[StepValue, int]  # their addresses in the recording
    registers: list[Register] = field(default_factory=list)  # by address

    def resolve(self, number: int, arguments: KernelArguments) -> list[Patch]:
        return [
            Patch(arguments.offset(argument.name), *self._source(number, arguments, argument))
            for argument in arguments.declared
            if argument.role not in (NUMBER, CONSTANT)
        ]

    def _source(
        self, number: int, arguments: KernelArguments, argument: Field
    ) -> tuple[StepValue, int] | tuple[Register, int]:
        """Return the source of an argument and the addend."""
        value, role = getattr(arguments, argument.name) or 0, argument.role
        if isinstance(role, StepValue):
            if role in STEP_NUMBERS or self.vectors.get(role) == value:
                return role, 0
        else:
            register = self._register_at(value)
            if register is None and isinstance(role, ResultField):
                # A new register. Its row stride is the same when the tape runs.
                register = self._add(value, role.row_bytes(arguments), number)
            if register is not None:
                register.last_call = number
                return register, value - register.address
        raise ValueError(
            f"argument {argument.name} of {arguments.kernel.name} was not computed by a kernel: "
            "a tape cannot record torch operations"
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
    """A recorded forward pass with the memory of its registers. One caller at a time."""

    def __init__(
        self,
        pool: KernelPool,
        calls: Sequence[RecordedCall],
        vectors: Mapping[StepValue, int],
        output: torch.Tensor,
    ) -> None:
        """`vectors`: the addresses that the recorded pass received; `output`: its result, [rows, width]."""
        self._pool = pool
        self._calls = calls  # keeps the constants alive
        resolver = Resolver(len(output), vectors)
        patches = [resolver.resolve(number, call.arguments) for number, call in enumerate(calls)]
        registers = [r for r in resolver.registers if r.address != output.data_ptr()]
        is_new = output.stride() == new_rows(output.shape, output.dtype).stride()
        if len(registers) == len(resolver.registers) or not is_new:
            raise ValueError("a kernel must write the result of a recorded forward pass")
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
        pool.library.check(
            pool.library.functions.ov_tape_open(
                structs, len(calls), len(StepValue), row_bytes, len(row_bytes), ctypes.byref(self._handle)
            )
        )

    def run(self, num_rows: int, num_sequences: int, addresses: Sequence[int]) -> torch.Tensor:
        """Run the pass and return its result, [num_rows, width]. `addresses` are those of `STEP_VECTORS`."""
        output = new_rows((num_rows, self._output_width), self._output_dtype)
        values = StepValues(num_rows, num_sequences, *addresses, output.data_ptr())
        library = self._pool.library
        library.check(library.functions.ov_tape_run(self._pool.handle, self._handle, values, len(values)))
        return output

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._pool.library.functions.ov_tape_close(self._handle)


def share_places(registers: Sequence[Register]) -> list[int]:
    """Return the number of the place of each register. Registers that share a place have the same row size,
    and the first call of one comes after the last call of the other."""
    in_use: list[Register] = []  # the latest register of each place
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
    """Return the calls as C structures, and the objects that they point to. `sources` is keyed by the `id` of
    the register."""
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
