"""The tokens that a sequence has used, for the penalties."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import torch

FIRST_CAPACITY = 64


class TokenTally:
    """Distinct tokens, and how often each was generated (0: it occurs in the prompt only).

    Its size is proportional to the number of distinct tokens, not to the vocabulary or the context. The order
    of the tokens depends on the history; no result may depend on that order.
    """

    def __init__(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        self._generated = Counter(output_ids)
        self._places = {
            token: place for place, token in enumerate(dict.fromkeys(chain(prompt_ids, self._generated)))
        }
        self._ids = torch.tensor(list(self._places), dtype=torch.int64)
        counts = [self._generated[token] for token in self._places]
        self._counts = torch.tensor(counts, dtype=torch.float32)

    def add(self, token_id: int) -> None:
        """Count one more generated token, in amortised constant time."""
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            self._grow()
        self._generated[token_id] += 1
        self._ids[place] = token_id
        self._counts[place] = self._generated[token_id]

    def ahead(self, drafts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and counts as if the drafts had been added. Changes nothing."""
        if not drafts:
            return self.ids, self.counts
        drafted = Counter(drafts)
        new = [token for token in drafted if token not in self._places]
        ids = torch.cat([self.ids, torch.tensor(new, dtype=torch.int64)])
        counts = torch.cat(
            [self.counts, torch.tensor([drafted[token] for token in new], dtype=torch.float32)]
        )
        for token, count in drafted.items():
            if token in self._places:
                counts[self._places[token]] += count
        return ids, counts

    @property
    def ids(self) -> torch.Tensor:
        """Distinct ids (int64, CPU), parallel to `counts`. A view that is valid until the next `add`."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> torch.Tensor:
        return self._counts[: len(self._places)]

    def _grow(self) -> None:
        added = max(FIRST_CAPACITY, len(self._ids))
        self._ids = torch.cat([self._ids, self._ids.new_zeros(added)])
        self._counts = torch.cat([self._counts, self._counts.new_zeros(added)])
