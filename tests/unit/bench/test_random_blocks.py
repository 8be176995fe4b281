import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from octavo.bench.random_blocks import SPREAD, random_blocks
from octavo.weight_format import FORMATS

GGUF_FORMATS = [name for name in FORMATS if name in Kind.__members__]


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_weights_are_finite_and_realistically_scaled(name: str) -> None:
    values = dequantize(random_blocks(name, 64, 512, np.random.default_rng(3)), Kind[name])
    assert values.shape == (64, 512)
    assert np.isfinite(values).all()
    assert SPREAD / 4 < np.std(values) < SPREAD * 4
    assert abs(np.mean(values)) < SPREAD


def test_every_format_is_reproducible() -> None:
    for name, form in FORMATS.items():
        drawn, again = (random_blocks(name, 3, 512, np.random.default_rng(1)) for _ in range(2))
        assert drawn.shape == (3, form.row_bytes(512))
        assert np.array_equal(drawn, again)
        assert not np.array_equal(drawn[0], drawn[1])
