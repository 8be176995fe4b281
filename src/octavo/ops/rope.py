"""Tables of the angles by which rotary embeddings turn queries and keys."""

import torch

_BLOCK = 4096


class RopeTable:
    """cos and sin of position * inverse frequency, grown when a longer context is met.

    Rows are computed on the CPU in fixed blocks of positions: how often and how far the table grew never
    shows in a row. The angle is rounded to float32, as it was when the models were trained.
    """

    def __init__(self, inverse_frequencies: torch.Tensor, device: torch.device) -> None:
        self._inverse_frequencies = inverse_frequencies.to("cpu", torch.float32)
        self._device = device
        self._cos = self._sin = torch.empty(0, len(inverse_frequencies), device=device)

    def cos_sin(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [at least num_positions, head_dim / 2], both"""
        if num_positions > len(self._cos):
            self._grow(max(num_positions, 2 * len(self._cos)))
        return self._cos, self._sin

    def _grow(self, num_positions: int) -> None:
        blocks = [self._block(start) for start in range(len(self._cos), num_positions, _BLOCK)]
        self._cos = torch.cat([self._cos, *(cos for cos, _ in blocks)])
        self._sin = torch.cat([self._sin, *(sin for _, sin in blocks)])

    def _block(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(start, start + _BLOCK, dtype=torch.float32)
        angles = torch.outer(positions, self._inverse_frequencies).double()
        return angles.cos().float().to(self._device), angles.sin().float().to(self._device)
