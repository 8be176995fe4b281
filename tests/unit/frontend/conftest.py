import pytest

from octavo.text.tokenizer import Tokenizer
from unit.frontend.scripted_hub import byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Every byte is a token."""
    return byte_tokenizer()
