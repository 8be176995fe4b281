"""Benchmarks of single kernels on shapes of real models, compared with the machine's limits and with torch.

A family prepares operands once and yields its cases. Calls rotate through several copies of the operands,
so that weights and keys come from memory, as they do in a step that reads the rest of the model in between.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from octavo.bench.measure import MEBIBYTE, Machine, Measurement, MinimumWork, Run, measure
from octavo.bench.random_blocks import random_blocks
from octavo.bench.random_model import SHAPES
from octavo.kernels import attention, gemm, rows, sampling
from octavo.kernels.attention import KVBlocks, SequenceTable
from octavo.kernels.gemm import PackedMatrix
from octavo.kernels.library import KernelPool
from octavo.protocol import KernelTimes
from octavo.weight_format import FORMATS

BF16 = 2  # bytes
F32 = 4
BLOCK_SIZE = 32  # tokens
MODELS = ("smollm2-135m", "llama-3.2-1b")
LOGITS_ROWS = 64  # the engine computes at most this many rows of logits at once


@dataclass(frozen=True)
class Scale:
    """How many cases are measured, and for how long."""

    row_counts: tuple[int, ...] = (1, 2, 8, 16, 32, 64, 128, 512, 1024, 2048)
    rotated_bytes: int = 640 * MEBIBYTE  # more than fits into any cache
    num_turns: int = 9
    max_wait: float = 2.0  # seconds to wait for AMX to return to full speed
    run_seconds: float = 0.003  # a run repeats its call for about this long


QUICK = Scale(row_counts=(1, 16, 512), rotated_bytes=320 * MEBIBYTE, num_turns=3, max_wait=0.2)


@dataclass(frozen=True)
class KernelCase:
    """`ours` and `baseline` (torch) do the work once, on the copy `number % count` of the operands."""

    kind: str  # kernel kind, as in `KernelTimes`
    name: str
    num_rows: int
    work: MinimumWork
    ours: Callable[[int], object]
    baseline: Callable[[int], object]

    @property
    def uses_amx(self) -> bool:
        """Whether the kernel multiplies matrices, with AMX if the processor has it."""
        return self.kind in ("gemm", "attention")


@dataclass(frozen=True)
class Family:
    kind: str  # kernel kind, as in `KernelTimes`
    name: str
    cases: Callable[[KernelPool, Scale], Iterator[KernelCase]]


@dataclass(frozen=True)
class KernelResult:
    """One line of the table. Seconds are medians; `fraction` and `speedup` are medians of paired ratios."""

    kind: str
    name: str
    num_rows: int
    seconds: float  # in the kernel only
    call_seconds: float  # including the call from Python
    gigabytes_per_second: float
    gigaflops: float
    intensity: float  # operations per byte
    bound: str  # memory or compute: the limit that applies
    limit_gigabytes_per_second: float
    limit_gigaflops: float  # 0: unknown
    fraction: float  # of the roofline that the kernel reaches
    torch_seconds: float
    speedup: float  # torch's seconds divided by ours, both including the call from Python
    num_turns: int
    num_dropped: int
    is_throttled: bool


def families(formats: Sequence[str] = ("BF16",)) -> tuple[Family, ...]:
    """Return all families for the given weight formats.

    Skip a product whose rows cannot be divided into weight blocks of the format.
    """
    return (
        *(
            gemm_family(model, layer, n, k, format)
            for format in formats
            for model in MODELS
            for layer, n, k in linear_layers(model)
            if format not in FORMATS or k % FORMATS[format].block_k == 0
        ),
        *(decode_family(model, 8, 4096) for model in MODELS),
        *(decode_family(model, 1, 256) for model in MODELS),
        *(prefill_family(model, 1024) for model in MODELS),
        *(row_family(model) for model in MODELS),
        *(sampling_family(vocab) for vocab in (49152, 151936)),
    )


def measure_families(
    chosen: Sequence[Family], pool: KernelPool, machine: Machine, scale: Scale
) -> Iterator[KernelResult]:
    """Measure the families and yield each result as soon as it is available."""
    torch.set_num_threads(pool.num_threads)
    for family in chosen:
        for case in family.cases(pool, scale):
            yield measure_case(case, pool, machine, scale)


@torch.inference_mode()
def measure_case(case: KernelCase, pool: KernelPool, machine: Machine, scale: Scale) -> KernelResult:
    candidates = [
        _repeated(case.ours, case.work, pool, scale.run_seconds),
        _repeated(case.baseline, case.work, pool, scale.run_seconds),
    ]
    measured = measure(
        machine,
        candidates,
        num_turns=scale.num_turns,
        max_wait=scale.max_wait,
        needs_amx=case.uses_amx,
    )
    return _result(case, measured)


def _repeated(
    call: Callable[[int], object], work: MinimumWork, pool: KernelPool, run_seconds: float
) -> Callable[[], Run]:
    """Return a candidate that repeats the call often enough to be timed and rotates through the operands."""
    call(0)
    start = time.perf_counter()
    call(1)
    num_calls = max(1, min(1000, int(run_seconds / (time.perf_counter() - start))))
    done = 2

    def run() -> Run:
        nonlocal done
        times_before, start = pool.times(), time.perf_counter()
        for index in range(done, done + num_calls):
            call(index)
        seconds, times = time.perf_counter() - start, pool.times() - times_before
        done += num_calls
        kernels = {kind: getattr(times, kind).seconds / num_calls for kind in KernelTimes.__struct_fields__}
        return Run(seconds / num_calls, work, kernels)

    return run


def _result(case: KernelCase, measured: Measurement) -> KernelResult:
    seconds, limits = measured.kernel_seconds(0), measured.limits
    return KernelResult(
        kind=case.kind,
        name=case.name,
        num_rows=case.num_rows,
        seconds=seconds,
        call_seconds=measured.seconds(0),
        gigabytes_per_second=case.work.num_bytes / seconds / 1e9,
        gigaflops=case.work.flops / seconds / 1e9,
        intensity=case.work.intensity,
        bound="memory" if case.work.is_memory_bound(limits) else "compute",
        limit_gigabytes_per_second=limits.bandwidth / 1e9,
        limit_gigaflops=limits.peak / 1e9,
        fraction=measured.fraction(lambda run: sum(run.kernels.values())),
        torch_seconds=measured.seconds(1),
        speedup=measured.ratio(1, 0),
        num_turns=len(measured.turns),
        num_dropped=measured.num_dropped,
        is_throttled=measured.is_throttled,
    )


# -- linear layers ------------------------------------------------------------------------------------------


def linear_layers(model: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, number of outputs and number of inputs of each linear layer."""
    shape = SHAPES[model]
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    head_dim = hidden // shape["num_attention_heads"]
    yield "qkv", hidden + 2 * shape["num_key_value_heads"] * head_dim, hidden
    yield "o", hidden, hidden
    yield "gate_up", 2 * inner, hidden
    yield "down", hidden, inner
    yield "head", shape["vocab_size"], hidden


def gemm_family(model: str, layer: str, n: int, k: int, format: str = "BF16") -> Family:
    name = f"gemm {model} {layer}" + (f" {format}" if format != "BF16" else "")
    out_dtype = torch.float32 if layer == "head" else torch.bfloat16

    def cases(pool: KernelPool, scale: Scale) -> Iterator[KernelCase]:
        first = PackedMatrix(pool.library, n, k, format)
        weight_bytes = first.num_bytes
        count = max(1, -(-scale.rotated_bytes // weight_bytes))
        packed = [first, *(PackedMatrix(pool.library, n, k, format) for _ in range(count - 1))]
        weight = _filled(pool, packed)
        plain = [weight.clone() for _ in range(max(1, -(-scale.rotated_bytes // (n * k * BF16))))]
        for m in scale.row_counts:
            if layer == "head" and m > LOGITS_ROWS:
                continue
            x = torch.randn(m, k, dtype=torch.bfloat16)
            num_bytes = weight_bytes + m * k * BF16 + m * n * out_dtype.itemsize
            yield KernelCase(
                "gemm",
                name,
                m,
                MinimumWork(num_bytes, 2.0 * m * n * k),
                lambda i, x=x: gemm.multiply(pool, x, packed[i % count], None, out_dtype),  # type: ignore[misc]
                lambda i, x=x: F.linear(x, plain[i % len(plain)]),  # type: ignore[misc]
            )

    return Family("gemm", name, cases)


def _filled(pool: KernelPool, packed: Sequence[PackedMatrix]) -> torch.Tensor:
    """Write the same random weights to all matrices and return the weights in bfloat16."""
    n, k = packed[0].n, packed[0].k
    if packed[0].format is None:
        weight = torch.randn(n, k, dtype=torch.bfloat16).div(k**0.5)
        for matrix in packed:
            matrix.write_rows(0, weight)
        return weight
    blocks = torch.from_numpy(random_blocks(packed[0].format, n, k, np.random.default_rng(0)))
    for matrix in packed:
        matrix.write_blocks(0, blocks)
    return gemm.read_rows(pool, packed[0], torch.arange(n))


# -- attention ----------------------------------------------------------------------------------------------


def _heads(model: str) -> tuple[int, int, int]:
    """Return the number of query heads, the number of key-value heads and the head size."""
    shape = SHAPES[model]
    heads = shape["num_attention_heads"]
    return heads, shape["num_key_value_heads"], shape["hidden_size"] // heads


def decode_family(model: str, batch: int, context: int) -> Family:
    name = f"decode attention {model} {batch} x {context}"
    heads, kv_heads, head_dim = _heads(model)

    def cases(pool: KernelPool, scale: Scale) -> Iterator[KernelCase]:
        kv_bytes = 2 * batch * context * kv_heads * head_dim * BF16
        count = max(1, -(-scale.rotated_bytes // kv_bytes))
        blocks_each = context // BLOCK_SIZE
        kv = _filled_blocks(pool, count * batch * blocks_each, kv_heads, head_dim)
        # The blocks of a sequence are scattered, as they are after hours of serving.
        tables = [
            SequenceTable.from_lists(
                range(batch), [1] * batch, [context] * batch, torch.split(ids, blocks_each)
            )
            for ids in torch.split(torch.randperm(count * batch * blocks_each), batch * blocks_each)
        ]
        query = torch.randn(batch, heads, head_dim, dtype=torch.bfloat16)
        key, value = (
            torch.randn(batch, kv_heads, context, head_dim, dtype=torch.bfloat16).repeat(count, 1, 1, 1, 1)
            for _ in range(2)
        )
        activations = 2 * batch * heads * head_dim * BF16
        yield KernelCase(
            "attention",
            name,
            batch,
            MinimumWork(kv_bytes + activations, 4.0 * batch * context * heads * head_dim),
            lambda i: attention.attend(pool, kv, query, tables[i % count], scale=head_dim**-0.5),
            lambda i: F.scaled_dot_product_attention(
                query.unsqueeze(2), key[i % count], value[i % count], enable_gqa=True
            ),
        )

    return Family("attention", name, cases)


def prefill_family(model: str, num_rows: int) -> Family:
    name = f"prefill attention {model} 1 x {num_rows}"
    heads, kv_heads, head_dim = _heads(model)

    def cases(pool: KernelPool, scale: Scale) -> Iterator[KernelCase]:
        num_blocks = -(-num_rows // BLOCK_SIZE)
        kv = _filled_blocks(pool, num_blocks, kv_heads, head_dim)
        table = SequenceTable.from_lists([0], [num_rows], [num_rows], [torch.arange(num_blocks)])
        query = torch.randn(num_rows, heads, head_dim, dtype=torch.bfloat16)
        key, value = (torch.randn(1, kv_heads, num_rows, head_dim, dtype=torch.bfloat16) for _ in range(2))
        visible = num_rows * (num_rows + 1) / 2
        num_bytes = 2 * num_rows * (heads + kv_heads) * head_dim * BF16
        yield KernelCase(
            "attention",
            name,
            num_rows,
            MinimumWork(num_bytes, 4.0 * visible * heads * head_dim),
            lambda i: attention.attend(pool, kv, query, table, scale=head_dim**-0.5),
            lambda i: F.scaled_dot_product_attention(
                query.transpose(0, 1).unsqueeze(0), key, value, is_causal=True, enable_gqa=True
            ),
        )

    return Family("attention", name, cases)


def _filled_blocks(pool: KernelPool, num_blocks: int, kv_heads: int, head_dim: int) -> KVBlocks:
    kv = KVBlocks(
        pool.library,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=torch.bfloat16,
    )
    rows_at_once = 4096
    values = torch.randn(rows_at_once, kv_heads, head_dim, dtype=torch.bfloat16)
    for slots in torch.split(torch.arange(num_blocks * BLOCK_SIZE), rows_at_once):
        attention.write_kv(pool, kv, values[: len(slots)], values[: len(slots)], slots)
    return kv


# -- row operations and sampling ----------------------------------------------------------------------------


def row_family(model: str) -> Family:
    """Return the row kernels. Their rows are in the cache, so that memory bandwidth is not their limit."""
    hidden, inner = SHAPES[model]["hidden_size"], SHAPES[model]["intermediate_size"]
    heads, _, head_dim = _heads(model)
    gain = torch.ones(hidden)

    def cases(pool: KernelPool, scale: Scale) -> Iterator[KernelCase]:
        for m in (count for count in scale.row_counts if count in (1, 16, 512)):
            x = torch.randn(m, hidden, dtype=torch.bfloat16)
            gate_up = torch.randn(m, 2 * inner, dtype=torch.bfloat16)
            query = torch.randn(m, heads, head_dim, dtype=torch.bfloat16)
            angles = torch.rand(m, head_dim // 2)
            cosines, sines, positions = angles.cos(), angles.sin(), torch.arange(m)
            yield KernelCase(
                "rows",
                f"add + norm {model}",
                m,
                MinimumWork(4.0 * m * hidden * BF16, 5.0 * m * hidden),
                lambda i, x=x: rows.add_rms_norm(pool, x, x, gain, 1e-5),  # type: ignore[misc]
                lambda i, x=x: _torch_add_norm(x, x, gain),  # type: ignore[misc]
            )
            yield KernelCase(
                "rows",
                f"swiglu {model}",
                m,
                MinimumWork(3.0 * m * inner * BF16, 5.0 * m * inner),
                lambda i, x=gate_up: rows.gated(pool, x, rows.Activation.SILU),  # type: ignore[misc]
                lambda i, x=gate_up: F.silu(x[:, :inner]) * x[:, inner:],  # type: ignore[misc]
            )
            yield KernelCase(
                "rows",
                f"rope {model}",
                m,
                MinimumWork(2.0 * m * heads * head_dim * BF16, 3.0 * m * heads * head_dim),
                lambda i, q=query, p=positions, c=cosines, s=sines: rows.rope(pool, q, p, c, s),  # type: ignore[misc]
                lambda i, q=query, c=cosines, s=sines: _torch_rope(q, c, s),  # type: ignore[misc]
            )

    return Family("rows", f"rows {model}", cases)


def _torch_add_norm(
    stream: torch.Tensor, update: torch.Tensor, gain: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    total = stream + update
    return total, F.rms_norm(total, (total.shape[1],), gain.to(total.dtype), 1e-5)


def _torch_rope(query: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    half = query.shape[2] // 2
    cosines, sines = cosines.unsqueeze(1).to(query.dtype), sines.unsqueeze(1).to(query.dtype)
    a, b = query[..., :half], query[..., half:]
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines), dim=-1)


def sampling_family(vocab: int) -> Family:
    batch = 16

    def cases(pool: KernelPool, scale: Scale) -> Iterator[KernelCase]:
        logits = torch.randn(batch, vocab) * 2.5  # about as peaked as those of a language model
        work = MinimumWork(1.0 * batch * vocab * F32, 1.0 * batch * vocab)
        greedy = [sampling.Row(temperature=0.0)] * batch
        top_p = [sampling.Row(temperature=0.8, top_p=0.95, noise_key=key) for key in range(batch)]
        yield KernelCase(
            "sampling",
            f"greedy of {vocab}",
            batch,
            work,
            lambda i: sampling.sample(pool, logits, greedy),
            lambda i: logits.argmax(dim=-1).tolist(),
        )
        yield KernelCase(
            "sampling",
            f"top_p of {vocab}",
            batch,
            work,
            lambda i: sampling.sample(pool, logits, top_p),
            lambda i: _torch_top_p(logits, 0.8, 0.95).tolist(),
        )

    return Family("sampling", f"sampling {vocab}", cases)


def _torch_top_p(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """Sample in the usual way: sort, cut off, draw."""
    ordered, ids = (logits / temperature).softmax(dim=-1).sort(dim=-1, descending=True)
    ordered[ordered.cumsum(dim=-1) - ordered >= top_p] = 0.0
    return ids.gather(1, ordered.multinomial(1)).squeeze(1)
