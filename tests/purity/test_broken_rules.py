"""Breaking any rule of docs/decisions/0005 makes the suite fail and name the place of the difference.

These runs do not use the tape, with which a kernel's Python function is called only once, to be recorded.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import pytest
import torch

from octavo.kernels import attention, gemm, rows
from octavo.kernels.attention import KVBlocks, SequenceTable
from octavo.kernels.gemm import PackedMatrix
from octavo.kernels.library import KernelLibrary, KernelPool, find_library
from purity.ways import PLAIN, Way, joining, loaded, mismatch, together
from purity.workloads import tiny_requests

WAYS = [Way(together, chunk=33, tape=False), Way(joining, chunk=128, tape=False)]


class Rest(TypedDict, total=False):
    """The other arguments of attention."""

    window: int | None
    softcap: float | None


def another_order_for_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate product for decoding, as many fast libraries do."""
    multiply = gemm.multiply

    def broken(
        pool: KernelPool,
        x: torch.Tensor,
        weight: PackedMatrix,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        if len(x) > 1:
            return multiply(pool, x, weight, bias, out_dtype)
        half = weight.k // 2
        w = gemm.read_rows(pool, weight, torch.arange(weight.n)).float()
        y = x[:, :half].float() @ w[:, :half].T + x[:, half:].float() @ w[:, half:].T
        return (y if bias is None else y + bias).to(out_dtype)

    monkeypatch.setattr(gemm, "multiply", broken)


def one_chain_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum over k sequentially, like a plain float product and unlike AMX for bf16."""
    multiply = gemm.multiply

    def broken(
        pool: KernelPool,
        x: torch.Tensor,
        weight: PackedMatrix,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype,
    ) -> torch.Tensor:
        if len(x) < 4:
            return multiply(pool, x, weight, bias, out_dtype)
        wide = PackedMatrix(pool.library, weight.n, weight.k, "F32")
        wide.write_rows(0, gemm.read_rows(pool, weight, torch.arange(weight.n)).float())
        return multiply(pool, x.float(), wide, bias, torch.float32).to(out_dtype)

    monkeypatch.setattr(gemm, "multiply", broken)


def another_sum_in_the_norm_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rms_norm = rows.rms_norm

    def broken(pool: KernelPool, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        if len(x) < 16:
            return rms_norm(pool, x, gain, eps)
        wide = x.double()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * gain).to(x.dtype)

    monkeypatch.setattr(rows, "rms_norm", broken)


def keys_cut_where_the_chunk_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute attention over older keys and over the keys of this step, then merge the two parts."""
    write_kv, attend = attention.write_kv, attention.attend
    written: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # keyed by layer and slot

    def write(
        pool: KernelPool, kv: KVBlocks, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
    ) -> None:
        write_kv(pool, kv, key, value, slots)
        for row, slot in enumerate(slots.tolist()):
            written[id(kv), slot] = key[row].float(), value[row].float()

    def broken(
        pool: KernelPool,
        kv: KVBlocks,
        query: torch.Tensor,
        table: SequenceTable,
        *,
        scale: float,
        **rest: Unpack[Rest],
    ) -> torch.Tensor:
        out = attend(pool, kv, query, table, scale=scale, **rest)
        for number, (first, count, context) in enumerate(
            zip(table.first_rows.tolist(), table.row_counts.tolist(), table.contexts.tolist(), strict=True)
        ):
            start = context - count
            if start == 0 or count == 1:
                continue
            blocks = table.blocks[int(table.block_offsets[number]) :].tolist()
            slots = [blocks[p // kv.block_size] * kv.block_size + p % kv.block_size for p in range(context)]
            keys, values = (
                torch.stack(both) for both in zip(*(written[id(kv), s] for s in slots), strict=True)
            )
            for row in range(count):
                seen = [slice(0, start), slice(start, start + row + 1)]
                parts = [_part(query[first + row].float(), keys[s], values[s], scale) for s in seen]
                largest = torch.maximum(parts[0][0], parts[1][0])
                sums = [(top - largest).exp() * total for top, total, _ in parts]
                merged = sum((top - largest).exp() * mix for top, _, mix in parts) / (sums[0] + sums[1])
                out[first + row] = merged.to(out.dtype)
        return out

    monkeypatch.setattr(attention, "write_kv", write)
    monkeypatch.setattr(attention, "attend", broken)


def _part(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return for each head the maximum score, the sum of exponentials and the weighted values."""
    group = query.shape[0] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("hd,khd->hk", query, keys) * scale
    largest = scores.max(dim=1, keepdim=True).values
    weights = (scores - largest).exp()
    return largest, weights.sum(dim=1, keepdim=True), torch.einsum("hk,khd->hd", weights, values)


@pytest.fixture
def best_isa() -> str:
    path = find_library()
    if path is None:
        pytest.skip("needs the native library")
    return KernelLibrary(path).best_isa.name.lower()


BreakRule = Callable[[pytest.MonkeyPatch], None]
RULES: Sequence[tuple[BreakRule, str, str]] = [
    # Rounding to bf16 hides most differences, so the first visible one may be in any product.
    (another_order_for_one_row, "bfloat16", r"(layer \d linear [\w.]+|logits lm_head)"),
    (one_chain_for_many_rows, "bfloat16", r"(layer \d linear [\w.]+|logits lm_head)"),
    (another_sum_in_the_norm_of_many_rows, "float32", "layer 0 rms_norm input_layernorm"),
    (keys_cut_where_the_chunk_begins, "float32", "layer 0 attention"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0].__name__)
def test_a_broken_rule_makes_the_suite_fail(
    family: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    best_isa: str,
    rule: tuple[BreakRule, str, str],
) -> None:
    break_the_rule, dtype, place = rule
    break_the_rule(monkeypatch)
    requests = tiny_requests()[1:24:3]
    with loaded(family("llama"), dtype, best_isa) as model:
        plain = model.run(PLAIN, requests)
        problems = [mismatch(model.run(way, requests), plain, requests) for way in WAYS]
    found = [problem for problem in problems if problem is not None]
    assert found
    assert all(re.search(rf"first difference: {place}, position \d+ ", problem) for problem in found), found


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_error_names_the_first_layer_and_position(
    family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, best_isa: str, layer: int
) -> None:
    """One number of one layer's attention is wrong, at one position of a later chunk."""
    attend, calls = attention.attend, 0

    def broken(
        pool: KernelPool,
        kv: KVBlocks,
        query: torch.Tensor,
        table: SequenceTable,
        *,
        scale: float,
        **rest: Unpack[Rest],
    ) -> torch.Tensor:
        nonlocal calls
        out = attend(pool, kv, query, table, scale=scale, **rest)
        calls += 1
        starts = table.contexts - table.row_counts
        for first, start, context in zip(
            table.first_rows.tolist(), starts.tolist(), table.contexts.tolist(), strict=True
        ):
            if calls % 3 == (layer + 1) % 3 and 0 < start <= 68 < context:
                out[first + 68 - start, 0, 0] += 0.125
        return out

    monkeypatch.setattr(attention, "attend", broken)
    requests = tiny_requests()[4:14:9]
    assert {len(request.prompt) for request in requests} == {69}  # the position that samples the first token
    with loaded(family("gemma3"), "float32", best_isa) as model:
        plain = model.run(PLAIN, requests)
        problem = mismatch(model.run(WAYS[0], requests), plain, requests)
    assert problem is not None
    assert f"first difference: layer {layer} attention, position 68 (max |difference| 0.125" in problem


def test_differences_outside_the_replay_are_reported(family: Callable[[str], Path], best_isa: str) -> None:
    """No layer causes this difference: it is in the answer itself."""
    requests = tiny_requests()[1:3]
    with loaded(family("llama"), "float32", best_isa) as model:
        plain = model.run(PLAIN, requests)
        found = model.run(WAYS[0], requests)
    first = found.answers[0][0]
    found.answers[0][0] = dataclasses.replace(
        first, token_ids=(*first.token_ids[:-1], first.token_ids[-1] ^ 1)
    )
    problem = mismatch(found, plain, requests)
    assert problem is not None
    assert "token_ids differ; replayed kernel by kernel, the runs agree" in problem
