"""The one way a row says that it cannot be served."""


class RowError(Exception):
    """This row alone failed. The message is fit for the person who sent the request."""


UNUSABLE_LOGITS = (
    "The model gave no usable scores for a token (NaN or infinity), so this request was ended. "
    "Send it again; if it fails again, try dtype float32 or another checkpoint."
)
NO_TOKEN_LEFT = (
    "The penalties, logit_bias, min_tokens and grammar of this request leave no token that can be drawn. "
    "Make the penalties milder, ban fewer tokens, or allow more text."
)
SAMPLING_FAILED = (
    "Sampling failed for this request alone. "
    "Check its sampling parameters against this model; the engine's log says more."
)
