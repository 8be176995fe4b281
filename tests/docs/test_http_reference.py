"""docs/reference/http.md lists exactly the fields of every request, with their types."""

import re

import pytest
import reference

from docs.pages import text_of

PAGE = "docs/reference/http.md"
ROW = re.compile(r"^\| `(\w+)` \| ([^|]*) \| [^|]+ \|", re.MULTILINE)

FIELDS = reference.http_fields()
CHAT, COMPLETION = FIELDS["ChatRequest"], FIELDS["CompletionRequest"]
TOKENIZE, DETOKENIZE = FIELDS["TokenizeRequest"], FIELDS["DetokenizeRequest"]
BOTH = {name for name in COMPLETION if CHAT.get(name) == COMPLETION[name]}
OF_TEMPLATES = {name for name in TOKENIZE if CHAT.get(name) == TOKENIZE[name]} - {"model", "messages"}

SECTIONS = {
    "## Common fields": (COMPLETION, BOTH),
    "## Chat completions": (CHAT, set(CHAT) - BOTH - OF_TEMPLATES),
    "### Template fields": (CHAT, OF_TEMPLATES),
    "## Completions": (COMPLETION, set(COMPLETION) - BOTH),
    "### Tokenize fields": (TOKENIZE, set(TOKENIZE) - OF_TEMPLATES - {"model"}),
    "### Detokenize fields": (DETOKENIZE, set(DETOKENIZE) - {"model"}),
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_request_field_is_listed(heading: str) -> None:
    fields, names = SECTIONS[heading]
    start = text_of(PAGE).index(f"\n{heading}\n") + 1
    following = re.search(r"^##", text_of(PAGE)[start + 4 :], re.MULTILINE)
    section = text_of(PAGE)[start : start + 4 + following.start() if following else None]
    assert dict(ROW.findall(section)) == {name: fields[name] for name in names}
