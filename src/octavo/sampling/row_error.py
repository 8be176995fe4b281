"""The one way a row says that it cannot be served."""


class RowError(Exception):
    """This row alone failed. The message is fit for the person who sent the request."""


UNUSABLE_LOGITS = (
    "The model gave no usable scores for a token (NaN or infinity), so this request was ended. "
    "Send it again; if it fails again, try dtype float32 or another checkpoint."
)
NO_TOKEN_LEFT = (
    "The penalties, logit_bias and min_tokens of this request leave no token that can be drawn. "
    "Make the penalties milder, or ban fewer tokens."
)
SAMPLING_FAILED = (
    "Sampling failed for this request alone. "
    "Check its sampling parameters against this model; the engine's log says more."
)
