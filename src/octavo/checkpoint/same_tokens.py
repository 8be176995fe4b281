"""A draft model must have the tokens of the model that verifies its drafts."""

from octavo.checkpoint import Checkpoint
from octavo.errors import ConfigError
from octavo.text.tokenizer import Tokenizer


def check_same_tokens(checkpoint: Checkpoint, draft: Checkpoint) -> None:
    """Raise ConfigError if a token id means different texts in the two checkpoints.

    One may have more ids than the other: vocabularies are often padded.
    """
    if checkpoint.text.tokenizer_json == draft.text.tokenizer_json:
        return
    ours, theirs = Tokenizer(checkpoint.text), Tokenizer(draft.text)
    common = range(min(ours.vocab_size, theirs.vocab_size))
    different = [
        token_id for token_id in common if ours.token_bytes(token_id) != theirs.token_bytes(token_id)
    ]
    if different:
        example = different[0]
        raise ConfigError(
            f"{draft.name} cannot draft for {checkpoint.name}: of their first {len(common):,} token ids,"
            f" {len(different):,} mean different texts, such as {example}"
            f" ({ours.token_text(example)!r} and {theirs.token_text(example)!r})."
            " Choose a draft model of the same family."
        )
