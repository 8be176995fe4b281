"""A grammar made of a hash function: which token is drawn depends on all tokens of the answer before it."""

from collections.abc import Iterable

from octavo.simulate.fake_model import FIRST_MASK, forced_token, next_mask

MAX_FORCED = 3  # tokens that a worker adds to those that it drew


class FakeMatcher:
    """Like a real matcher, it looks ahead by consuming tokens, and must then be rolled back."""

    def __init__(self, output_ids: Iterable[int] = ()) -> None:
        self._masks = [FIRST_MASK]
        for token in output_ids:
            self.consume(token)

    @property
    def mask(self) -> int:
        return self._masks[-1]

    def consume(self, token: int) -> None:
        self._masks.append(next_mask(self.mask, token))

    def roll_back(self, num_tokens: int) -> None:
        del self._masks[len(self._masks) - num_tokens :]

    def masks_ahead(self, draft_ids: tuple[int, ...]) -> list[int]:
        """Return the mask of the next token, and those after each draft."""
        masks = [self.mask]
        for token in draft_ids:
            self.consume(token)
            masks.append(self.mask)
        self.roll_back(len(draft_ids))
        return masks

    def forced(self, vocab: int, limit: int) -> list[int]:
        """Return the next tokens that need no drawing, at most `limit`, and consume them."""
        tokens: list[int] = []
        while len(tokens) < limit and (token := forced_token(self.mask, vocab)) is not None:
            self.consume(token)
            tokens.append(token)
        return tokens
