"""Tables of the angles by which rotary embeddings rotate queries and keys."""

from collections.abc import Callable

import torch

_GROWTH_STEP = 4096  # positions

# (first position, number of positions) -> cosines and sines, float32 [number of positions, head_dim / 2]
Angles = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]


class RopeTable:
    """cos and sin of position * inverse frequency. The table grows when a longer context needs it.

    `angles` computes rows, always for a fixed number of positions, so rows do not depend on how the table
    grew. The angle is rounded to float32, as it was when the models were trained.
    """

    def __init__(self, angles: Angles) -> None:
        self._angles = angles
        self._cos, self._sin = angles(0, 0)

    def cos_sin(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, each float32 [at least num_positions, head_dim / 2]."""
        if num_positions > len(self._cos):
            self._grow(max(num_positions, 2 * len(self._cos)))
        return self._cos, self._sin

    def _grow(self, num_positions: int) -> None:
        starts = range(len(self._cos), num_positions, _GROWTH_STEP)
        added = [self._angles(start, _GROWTH_STEP) for start in starts]
        self._cos = torch.cat([self._cos, *(cos for cos, _ in added)])
        self._sin = torch.cat([self._sin, *(sin for _, sin in added)])
