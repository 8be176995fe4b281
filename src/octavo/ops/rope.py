"""Tables of the angles by which rotary embeddings turn queries and keys."""

from collections.abc import Callable

import torch

_BLOCK = 4096

# (first position, how many) -> cosines and sines, float32 [how many, head_dim / 2]
Angles = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]


class RopeTable:
    """cos and sin of position * inverse frequency, grown when a longer context is met.

    `angles` computes rows; it is asked for fixed blocks of positions: how often and how far the table grew
    never shows in a row. The angle is rounded to float32, as it was when the models were trained.
    """

    def __init__(self, angles: Angles) -> None:
        self._angles = angles
        self._cos, self._sin = angles(0, 0)

    def cos_sin(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [at least num_positions, head_dim / 2], both"""
        if num_positions > len(self._cos):
            self._grow(max(num_positions, 2 * len(self._cos)))
        return self._cos, self._sin

    def _grow(self, num_positions: int) -> None:
        blocks = [self._angles(start, _BLOCK) for start in range(len(self._cos), num_positions, _BLOCK)]
        self._cos = torch.cat([self._cos, *(cos for cos, _ in blocks)])
        self._sin = torch.cat([self._sin, *(sin for _, sin in blocks)])
