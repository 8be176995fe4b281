"""Sampling: one native call draws the tokens of all rows. `octavo.sampling` is the reference."""

import ctypes
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch

from octavo.kernels.arguments import Pointer, Size
from octavo.kernels.library import KernelPool
from octavo.protocol import LOGPROB_FLOOR


class RowStatus(enum.IntEnum):
    """`ov_row_error` of octavo_kernels.h."""

    OK = 0
    UNUSABLE_LOGITS = 1
    NO_TOKEN_LEFT = 2
    BAD_ID = 3


class SampleRowArguments(ctypes.Structure):
    """`ov_sample_row` of octavo_kernels.h, field by field."""

    _fields_ = (
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("top_k", Size),
        ("noise_key", ctypes.c_uint64),
        ("seen_ids", Pointer),
        ("seen_counts", Pointer),
        ("num_seen", Size),
        ("repetition_penalty", ctypes.c_float),
        ("presence_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
        ("num_top", ctypes.c_int32),
        ("bias_ids", Pointer),
        ("bias_values", Pointer),
        ("num_biased", Size),
        ("banned_ids", Pointer),
        ("num_banned", Size),
        ("given", Size),
        ("allowed", Pointer),
        ("num_allowed_words", Size),
    )


class Sampled(ctypes.Structure):
    """`ov_sampled`"""

    _fields_ = (("token_id", Size), ("logprob", ctypes.c_float), ("error", ctypes.c_int32))


PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ov_sample": (
        ctypes.c_int,
        (
            Pointer,
            Pointer,
            Size,
            Size,
            Size,
            ctypes.POINTER(SampleRowArguments),
            ctypes.POINTER(Sampled),
            Pointer,
            Pointer,
            Size,
            ctypes.c_float,
        ),
    ),
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters of one row. Ids are distinct int64; values and counts are float32, one per id."""

    temperature: float
    noise_key: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seen_ids: torch.Tensor | None = None
    seen_counts: torch.Tensor | None = None
    bias_ids: torch.Tensor | None = None
    bias_values: torch.Tensor | None = None
    banned_ids: torch.Tensor | None = None
    logprobs: int | None = None  # None: none; k: those of the token and of the k best
    given: int | None = None  # score this token instead of drawing one
    allowed: torch.Tensor | None = None  # int32 words: token i may be drawn if bit i % 32 of word i / 32 is 1


class SampledRow(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]  # best first
    status: RowStatus


def sample(pool: KernelPool, logits: torch.Tensor, rows: Sequence[Row]) -> list[SampledRow]:
    """Draw one token for each row of float32 [rows, vocab]."""
    if logits.dtype != torch.float32 or logits.device.type != "cpu" or logits.dim() != 2:
        raise ValueError(
            f"logits are {logits.dtype} {tuple(logits.shape)} on {logits.device}; "
            "they must be float32 [rows, vocab] on the CPU"
        )
    if len(logits) != len(rows):
        raise ValueError(f"{len(logits)} rows of logits for {len(rows)} rows to sample")
    if not rows:
        return []
    vocab = logits.shape[1]
    if vocab > 1 and logits.stride(1) != 1:
        logits = logits.contiguous()
    num_top = [-1 if row.logprobs is None else min(row.logprobs, vocab) for row in rows]
    limit = max(0, *num_top)
    top_ids = torch.empty(len(rows), limit, dtype=torch.int64) if limit else None
    top_logprobs = torch.empty(len(rows), limit, dtype=torch.float32) if limit else None
    arguments = (SampleRowArguments * len(rows))(*map(_arguments, rows, num_top))
    sampled = (Sampled * len(rows))()
    pool.library.check(
        pool.library.functions.ov_sample(
            pool.handle,
            logits.data_ptr(),
            logits.stride(0) if len(rows) > 1 else vocab,
            len(rows),
            vocab,
            arguments,
            sampled,
            None if top_ids is None else top_ids.data_ptr(),
            None if top_logprobs is None else top_logprobs.data_ptr(),
            limit,
            LOGPROB_FLOOR,
        )
    )
    if top_ids is None or top_logprobs is None:
        return [_outcome(one, count, [], []) for one, count in zip(sampled, num_top, strict=True)]
    return list(map(_outcome, sampled, num_top, top_ids.tolist(), top_logprobs.tolist()))


def _outcome(one: Sampled, num_top: int, top_ids: list[int], top_logprobs: list[float]) -> SampledRow:
    if one.error != RowStatus.OK:
        return SampledRow(one.token_id, None, (), RowStatus(one.error))
    if num_top < 0:
        return SampledRow(one.token_id, None, (), RowStatus.OK)
    top = tuple(zip(top_ids[:num_top], top_logprobs[:num_top], strict=True))
    return SampledRow(one.token_id, one.logprob, top, RowStatus.OK)


def _arguments(row: Row, num_top: int) -> SampleRowArguments:
    """Return the row's arguments. They contain addresses of its tensors, so the row must outlive them."""
    seen_ids, num_seen = _list(row.seen_ids, torch.int64)
    seen_counts, num_counts = _list(row.seen_counts, torch.float32)
    bias_ids, num_biased = _list(row.bias_ids, torch.int64)
    bias_values, num_values = _list(row.bias_values, torch.float32)
    banned_ids, num_banned = _list(row.banned_ids, torch.int64)
    allowed, num_allowed_words = _list(row.allowed, torch.int32)
    if num_seen != num_counts or num_biased != num_values:
        raise ValueError("every seen id must have a count, and every biased id a value")
    return SampleRowArguments(
        row.temperature,
        row.top_p,
        row.min_p,
        row.top_k,
        row.noise_key,
        seen_ids,
        seen_counts,
        num_seen,
        row.repetition_penalty,
        row.presence_penalty,
        row.frequency_penalty,
        num_top,
        bias_ids,
        bias_values,
        num_biased,
        banned_ids,
        num_banned,
        -1 if row.given is None else row.given,
        allowed,
        num_allowed_words,
    )


def _list(items: torch.Tensor | None, dtype: torch.dtype) -> tuple[int | None, int]:
    """Return the address and length of a list of ids, values or words."""
    if items is None or not len(items):
        return None, 0
    if items.dtype != dtype or items.dim() != 1 or not items.is_contiguous() or items.device.type != "cpu":
        raise ValueError(f"expected a contiguous list of {dtype}, not {items.dtype} {tuple(items.shape)}")
    return items.data_ptr(), len(items)
