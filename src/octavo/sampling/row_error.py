"""Failures of a single row in sampling."""

from octavo.protocol import Failure, FailureCode


class RowError(Exception):
    """One row failed. The other rows of the batch are not affected."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


UNUSABLE_LOGITS = Failure(
    FailureCode.ENGINE_FAILED,
    "The model returned no usable scores for a token (NaN or infinity), so this request was ended. "
    "Send it again; if it fails again, try dtype float32 or another checkpoint.",
)
NO_TOKEN_LEFT = Failure(
    FailureCode.ENGINE_FAILED,
    "The penalties, logit_bias, min_tokens and grammar of this request leave no token that can be drawn. "
    "Reduce the penalties, ban fewer tokens, or use a less restrictive grammar.",
)
SAMPLING_FAILED = Failure(
    FailureCode.ENGINE_FAILED,
    "Sampling failed for this request only. "
    "Check its sampling parameters against this model; the engine's log has more details.",
)
