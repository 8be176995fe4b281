"""Updates before a failure are not lost, and a name belongs to one request at a time."""

from dataclasses import replace

import pytest

from octavo.errors import RequestError
from octavo.frontend.mailbox import Mailbox, Names
from octavo.frontend.output import StreamDelta
from octavo.text.tokenizer import Tokenizer
from unit.frontend.scripted_hub import request


def test_a_failure_is_raised_after_earlier_updates() -> None:
    mailbox = Mailbox()
    before, after = (StreamDelta(request_id=name, choice=0, text="", token_ids=()) for name in "ab")
    for update in (before, RuntimeError("no text"), after):
        mailbox.put(update)
    assert mailbox.take() == [before]
    with pytest.raises(RuntimeError, match="no text"):
        mailbox.take()
    assert mailbox.take() == [after]
    assert not mailbox
    assert mailbox.take() == []


def test_freeing_a_name_twice_does_not_affect_its_next_owner(tokenizer: Tokenizer) -> None:
    names = Names()
    first, second = (replace(request(tokenizer, one).prepared, name="mine") for one in "12")
    names.add(first)
    with pytest.raises(RequestError, match="already in use"):
        names.add(second)
    names.free(first)
    names.add(second)
    names.free(first)  # its last update arrives late
    assert names.get("mine") == "2"
