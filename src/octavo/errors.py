"""All errors for users. The message says what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager


class OctavoError(Exception):
    """Base class of all errors that Octavo raises on purpose."""


class ConfigError(OctavoError):
    """An option has an invalid value."""


class CheckpointError(OctavoError):
    """A checkpoint is missing, malformed or not supported."""


class TemplateError(OctavoError):
    """A chat template is missing, failed, or exceeded its limits."""


class PromptNotMade(OctavoError):
    """A prompt could not be prepared at present. The request may be valid."""


class FleetError(OctavoError):
    """The operator's command cannot be followed in the present state of the replicas, or it has failed."""


class UnknownReplica(FleetError):
    """There is no replica with this name."""


class CapacityError(OctavoError):
    """The memory of this machine is too small for the options."""


class RequestError(OctavoError):
    """A request is rejected. `param` names the invalid field, as API clients expect it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestError):
    """A prompt and the requested answer together are longer than the model's context."""


class GrammarError(RequestError):
    """A grammar is rejected: it is malformed, uses an unsupported feature, or is too complex."""

    def __init__(self, message: str, param: str = "grammar") -> None:
        super().__init__(message, param)


class GrammarTooComplex(GrammarError):
    """An accepted grammar turned out to be too complex while an answer was generated."""


class GrammarNotChecked(GrammarError):
    """A grammar could not be checked at present. It may be valid."""


class TooManyGrammars(GrammarNotChecked):
    """Too many grammars are waiting to be checked."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after  # seconds


@contextmanager
def grammar_of(field: str) -> Iterator[None]:
    """Add the name of a grammar's field to the grammar errors raised inside."""
    try:
        yield
    except GrammarNotChecked:  # the field is not at fault
        raise
    except GrammarError as error:
        raise type(error)(f"{field}: {error}", field) from error
