"""Every error a person can meet. The message says what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager


class OctavoError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(OctavoError):
    """An option has a value that cannot work."""


class CheckpointError(OctavoError):
    """A checkpoint is missing, malformed or of a kind that is not supported."""


class TemplateError(OctavoError):
    """A chat template is missing, failed, or ran past its limits."""


class PromptNotMade(OctavoError):
    """Nothing is known against a request: its prompt could not be made now."""


class CapacityError(OctavoError):
    """This machine is too small for what was asked of it."""


class RequestError(OctavoError):
    """A request is refused. `param` names the field at fault, as API clients expect it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestError):
    """A prompt and the answer asked for are longer together than the model's context."""


class GrammarError(RequestError):
    """A grammar is refused: it is malformed, says what we cannot hold an answer to, or is too complex."""

    def __init__(self, message: str, param: str = "grammar") -> None:
        super().__init__(message, param)


class GrammarTooComplex(GrammarError):
    """A grammar that was accepted cannot be followed any further: it shows only while an answer is drawn."""


class GrammarNotChecked(GrammarError):
    """Nothing is known against a grammar: it could not be checked now."""


@contextmanager
def grammar_of(field: str) -> Iterator[None]:
    """What is wrong with a grammar is said with the name of the field that it came from."""
    try:
        yield
    except GrammarNotChecked:  # the field is not at fault
        raise
    except GrammarError as error:
        raise type(error)(f"{field}: {error}", field) from error
