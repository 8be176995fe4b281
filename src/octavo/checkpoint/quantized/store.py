"""A quantised safetensors checkpoint as a store of plain weights: `<module>.weight`, whatever its parts."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from octavo.checkpoint.quantized.config import Scheme
from octavo.checkpoint.quantized.refusal import damaged
from octavo.checkpoint.quantized.weight import QuantizedWeight
from octavo.checkpoint.safetensors_file import SafetensorsStore
from octavo.checkpoint.tensors import RowChunk, TensorInfo
from octavo.weight_format import FORMATS

logger = logging.getLogger(__name__)

# Parts of quantised weights, and scales of activations and KV, which are not used: no weights of their own.
PARTS = frozenset(
    (
        *(
            "weight_packed",
            "weight_scale",
            "weight_zero_point",
            "weight_shape",
            "weight_g_idx",
            "weight_scale_inv",
        ),
        *("qweight", "qzeros", "scales", "g_idx"),
        *("input_scale", "input_zero_point", "output_scale", "output_zero_point", "activation_scale"),
        *("q_scale", "k_scale", "v_scale", "prob_scale", "q_zero_point", "k_zero_point", "v_zero_point"),
    )
)


@dataclass(frozen=True)
class QuantizedStore:
    """Weights that are not quantised come as they are in `files_store`."""

    files_store: SafetensorsStore
    scheme: Scheme

    @property
    def files(self) -> tuple[Path, ...]:
        return self.files_store.files

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        widened = Counter[str]()
        for name, info in self.files_store.tensors.items():
            weight = self._quantised.get(name)
            if weight is not None:
                form = weight.format()
                if form is None:
                    widened[weight.why_widened()] += 1
                tensors[weight.name] = TensorInfo(weight.name, weight.shape, form or "F32", weight.nbytes)
            elif name.rpartition(".")[2] not in PARTS:
                if name in self._by_name:
                    raise damaged(f"{name} is there twice, as it is and quantised")
                tensors[name] = info
        for note in self.scheme.notes:
            logger.info("%s", note)
        for reason, count in widened.items():
            logger.info("%d quantised weights are widened when they are loaded: %s", count, reason)
        return tensors

    def chunks(self, name: str) -> Iterator[RowChunk]:
        weight = self._by_name.get(name)
        if weight is None:
            yield from self.files_store.chunks(name)
            return
        for start, values in weight.values():
            yield RowChunk(start, values, "F32", _source_bytes(weight, start, len(values)))

    def blocks(self, name: str) -> Iterator[RowChunk]:
        weight = self._by_name.get(name)
        form = self.tensors[name].source_dtype
        if weight is None or form not in FORMATS:
            raise ValueError(f"{name} is not kept in blocks")
        for start, blocks in weight.blocks():
            yield RowChunk(start, blocks, form, _source_bytes(weight, start, len(blocks)))

    @cached_property
    def _quantised(self) -> Mapping[str, QuantizedWeight]:
        """By the name of the tensor with the codes."""
        return dict(self.scheme.weights(self.files_store))

    @cached_property
    def _by_name(self) -> Mapping[str, QuantizedWeight]:
        return {weight.name: weight for weight in self._quantised.values()}


def _source_bytes(weight: QuantizedWeight, start: int, num_rows: int) -> int:
    """The share of some rows in all bytes of a weight, such that the shares of all rows add up."""
    n = weight.shape[0]
    return weight.nbytes * (start + num_rows) // n - weight.nbytes * start // n
