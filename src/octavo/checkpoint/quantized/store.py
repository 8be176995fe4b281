"""Present a quantised safetensors checkpoint as a store of plain weights named `<module>.weight`."""

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

# Parts of quantised weights, and scales of activations and KV, which are not used. None is a weight itself.
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
    """The weights of a quantised checkpoint. Weights that are not quantised are read from `files_store`."""

    files_store: SafetensorsStore
    scheme: Scheme

    @property
    def files(self) -> tuple[Path, ...]:
        return self.files_store.files

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        dequantised = Counter[str]()
        for name, info in self.files_store.tensors.items():
            weight = self._quantised.get(name)
            if weight is not None:
                format_name = weight.format()
                if format_name is None:
                    dequantised[weight.why_dequantised()] += 1
                dtype = format_name or "F32"
                tensors[weight.name] = TensorInfo(weight.name, weight.shape, dtype, weight.nbytes)
            elif name.rpartition(".")[2] not in PARTS:
                if name in self._by_name:
                    raise damaged(f"{name} is present twice, unquantised and quantised")
                tensors[name] = info
        for note in self.scheme.notes:
            logger.info("%s", note)
        for reason, count in dequantised.items():
            logger.info("dequantising %d weights at load: %s", count, reason)
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
        format_name = self.tensors[name].source_dtype
        if weight is None or format_name not in FORMATS:
            raise ValueError(f"{name} is not stored in weight blocks")
        for start, blocks in weight.blocks():
            yield RowChunk(start, blocks, format_name, _source_bytes(weight, start, len(blocks)))

    @cached_property
    def _quantised(self) -> Mapping[str, QuantizedWeight]:
        """Quantised weights by the name of the tensor that contains their codes."""
        return dict(self.scheme.weights(self.files_store))

    @cached_property
    def _by_name(self) -> Mapping[str, QuantizedWeight]:
        return {weight.name: weight for weight in self._quantised.values()}


def _source_bytes(weight: QuantizedWeight, start: int, num_rows: int) -> int:
    """Return the share of these rows in the size of a weight. The shares of all rows add up to the size."""
    n = weight.shape[0]
    return weight.nbytes * (start + num_rows) // n - weight.nbytes * start // n
