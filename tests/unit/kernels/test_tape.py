"""The tape: replay equals direct execution, and recording rejects what it cannot track."""

import ctypes
import random
from collections.abc import Callable

import pytest
import torch

from octavo.kernels import gemm, rows
from octavo.kernels.arguments import STEP_VECTORS, Kernel, Pointer, StepValue
from octavo.kernels.gemm import PackedMatrix
from octavo.kernels.library import KernelLibrary, KernelPool
from octavo.kernels.rows import AddArguments, ScaleArguments
from octavo.kernels.spread import new_rows
from octavo.kernels.tape import PatchStruct, Register, Resolver, Tape, TapeCallStruct, share_places

OpenPool = Callable[..., KernelPool]
WIDTH = 48


def weight(library: KernelLibrary, n: int, k: int) -> PackedMatrix:
    matrix = PackedMatrix(library, n, k, "BF16")
    matrix.write_rows(0, torch.randn(n, k, generator=torch.Generator().manual_seed(n)))
    return matrix


class Network:
    """A network with long-lived and short-lived registers, one read as a view and one written in place."""

    def __init__(self, pool: KernelPool) -> None:
        self.pool = pool
        self.table = weight(pool.library, 90, WIDTH)
        self.matrices = [weight(pool.library, WIDTH, 2 * WIDTH) for _ in range(3)]
        self.wide = [weight(pool.library, 4 * WIDTH, WIDTH) for _ in range(3)]
        self.gain = torch.rand(WIDTH)
        self.angles = torch.rand(64, 8)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        pool = self.pool
        stream = gemm.read_rows(pool, self.table, token_ids)
        for narrow, wide in zip(self.matrices, self.wide, strict=True):
            x = rows.rms_norm(pool, stream, self.gain, 1e-5)
            both = gemm.multiply(pool, x, wide, None, torch.bfloat16)
            _first, second = both.split(2 * WIDTH, dim=1)
            heads = second.view(len(x), -1, 16)
            rows.rope(pool, heads, positions, self.angles, self.angles, out=heads)
            update = gemm.multiply(pool, second, narrow, None, torch.bfloat16)
            stream, x = rows.add_rms_norm(pool, stream, update, self.gain, 1e-5)
            stream = rows.add(pool, stream, x)
        return rows.rms_norm(pool, stream, self.gain, 1e-5)


def record(pool: KernelPool, forward: Callable[..., torch.Tensor]) -> Tape:
    token_ids, positions = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    vectors = {StepValue.TOKEN_IDS: token_ids.data_ptr(), StepValue.POSITIONS: positions.data_ptr()}
    with pool.recording() as calls:
        output = forward(token_ids, positions)
    return Tape(pool, calls, vectors, output)


def addresses(token_ids: torch.Tensor, positions: torch.Tensor) -> list[int]:
    """Return the addresses of all step vectors; the network uses only these two."""
    given = {StepValue.TOKEN_IDS: token_ids.data_ptr(), StepValue.POSITIONS: positions.data_ptr()}
    return [given.get(vector, 0) for vector in STEP_VECTORS]


def test_replay_matches_direct_execution_for_any_number_of_rows(
    library: KernelLibrary, open_pool: OpenPool
) -> None:
    network = Network(open_pool(library.best_isa))
    tape = record(network.pool, network.forward)
    for num_rows in (1, 5, 130, 2):
        token_ids = torch.randint(90, (num_rows,), generator=torch.Generator().manual_seed(num_rows))
        positions = token_ids % 64
        played = tape.run(num_rows, 1, addresses(token_ids, positions))
        assert torch.equal(played, network.forward(token_ids, positions))


def test_several_kernels_can_write_columns_of_one_result(library: KernelLibrary, open_pool: OpenPool) -> None:
    pool = open_pool(library.best_isa)
    table = weight(library, 90, WIDTH)

    def forward(token_ids: torch.Tensor, _positions: torch.Tensor) -> torch.Tensor:
        x = gemm.read_rows(pool, table, token_ids)
        y = new_rows((len(x), 3 * WIDTH), x.dtype)
        for number, part in enumerate(y.split(WIDTH, dim=1)):
            places = x.data_ptr(), x.stride(0), part.data_ptr(), part.stride(0)
            pool.run(ScaleArguments(0, number + 1.0, *places, len(x), WIDTH), x, y)
        return rows.add(pool, y, y)

    tape = record(pool, forward)
    token_ids = torch.arange(7)
    expected = torch.cat([gemm.read_rows(pool, table, token_ids) * factor for factor in (2, 4, 6)], dim=1)
    assert torch.equal(tape.run(7, 1, addresses(token_ids, token_ids)), expected)


def test_recording_executes_no_kernel(library: KernelLibrary, open_pool: OpenPool) -> None:
    pool = open_pool(library.best_isa)
    x = torch.full((2, 8), 3.0)
    with pool.recording() as calls:
        rows.rope(
            pool,
            x[:, None],
            torch.zeros(2, dtype=torch.int64),
            x[:, :4].clone(),
            x[:, :4].clone(),
            out=x[:, None],
        )
    assert [call.arguments.kernel for call in calls] == [Kernel.ROPE]
    assert torch.all(x == 3.0)
    assert torch.equal(rows.add(pool, x, x), x + x)


def test_recording_rejects_tensors_computed_by_torch(library: KernelLibrary, open_pool: OpenPool) -> None:
    """The recording would contain it as a constant: the same numbers in every step."""
    network = Network(open_pool(library.best_isa))

    def doubled(token_ids: torch.Tensor, _positions: torch.Tensor) -> torch.Tensor:
        x = gemm.read_rows(network.pool, network.table, token_ids)
        return rows.rms_norm(network.pool, x * 2, network.gain, 1e-5)

    def not_a_result(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return network.forward(token_ids, positions) * 2

    def other_positions(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return network.forward(token_ids, positions + 1)

    def the_wrong_vector(token_ids: torch.Tensor, _positions: torch.Tensor) -> torch.Tensor:
        return network.forward(token_ids, token_ids)

    for forward in (doubled, not_a_result, other_positions, the_wrong_vector):
        with pytest.raises(ValueError, match=r"cannot record torch|a kernel must write the result"):
            record(network.pool, forward)


def test_registers_that_share_a_place_have_disjoint_lifetimes() -> None:
    chance = random.Random(4)
    for _ in range(200):
        registers = []
        for address in range(chance.randrange(1, 30)):
            first = chance.randrange(20)
            registers.append(Register(address, chance.choice([64, 96]), first, first + chance.randrange(6)))
        places = share_places(registers)
        assert set(places) == set(range(max(places) + 1))
        for one, place in zip(registers, places, strict=True):
            for other, other_place in zip(registers, places, strict=True):
                if one is not other and place == other_place:
                    assert one.row_bytes == other.row_bytes
                    assert one.last_call < other.first_call or other.last_call < one.first_call


def test_places_are_reused_across_layers(library: KernelLibrary, open_pool: OpenPool) -> None:
    network = Network(open_pool(library.best_isa))
    ids = torch.zeros(2, dtype=torch.int64)
    with network.pool.recording() as calls:
        network.forward(ids, ids)
    resolver = Resolver(2, dict.fromkeys((StepValue.TOKEN_IDS, StepValue.POSITIONS), ids.data_ptr()))
    for number, call in enumerate(calls):
        resolver.resolve(number, call.arguments)
    assert len(resolver.registers) > 15
    assert len(set(share_places(resolver.registers))) <= 6


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": 99},
        {"kernel": -1},
        {"args": None},
        {"args_bytes": 8},
        {"num_patches": -1},
        {"patches": None},
        {"offset": -8},
        {"offset": 4},
        {"offset": ctypes.sizeof(AddArguments)},
        {"source": 1},
        {"source": -1},
    ],
    ids=str,
)
def test_the_c_interface_rejects_an_invalid_tape(
    library: KernelLibrary, change: dict[str, int | None]
) -> None:
    arguments = AddArguments()
    patch = PatchStruct(8, 0, 0)
    call = TapeCallStruct(
        Kernel.ADD, 1, ctypes.pointer(patch), ctypes.addressof(arguments), ctypes.sizeof(arguments)
    )
    handle = Pointer()
    opened = library.functions.ov_tape_open(ctypes.pointer(call), 1, 1, None, 0, ctypes.byref(handle))
    assert opened == 0
    library.functions.ov_tape_close(handle)
    for name, value in change.items():
        setattr(patch if name in ("offset", "source") else call, name, value)
    assert library.functions.ov_tape_open(ctypes.pointer(call), 1, 1, None, 0, ctypes.byref(handle)) != 0


def test_an_invalid_call_stops_the_tape_with_an_error(library: KernelLibrary, open_pool: OpenPool) -> None:
    network = Network(open_pool(library.best_isa))
    tape = record(network.pool, network.forward)
    good = torch.zeros(3, dtype=torch.int64)
    for token_ids, positions in [(good + 90, good), (good, good - 1)]:
        with pytest.raises(ValueError, match="native kernel"):
            tape.run(3, 1, addresses(token_ids, positions))
    with pytest.raises(ValueError, match="native kernel"):
        tape.run(0, 1, addresses(good, good))
