"""The one way a row says that it cannot be served."""

from octavo.protocol import Failure, FailureCode


class RowError(Exception):
    """This row alone failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


UNUSABLE_LOGITS = Failure(
    FailureCode.ENGINE_FAILED,
    "The model gave no usable scores for a token (NaN or infinity), so this request was ended. "
    "Send it again; if it fails again, try dtype float32 or another checkpoint.",
)
NO_TOKEN_LEFT = Failure(
    FailureCode.ENGINE_FAILED,
    "The penalties, logit_bias, min_tokens and grammar of this request leave no token that can be drawn. "
    "Make the penalties milder, ban fewer tokens, or allow more text.",
)
SAMPLING_FAILED = Failure(
    FailureCode.ENGINE_FAILED,
    "Sampling failed for this request alone. "
    "Check its sampling parameters against this model; the engine's log says more.",
)
