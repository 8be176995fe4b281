"""The pages about the HTTP APIs list exactly the fields of every request, with their types."""

import re

import pytest
import reference

from docs.pages import text_of

HTTP, MESSAGES = "docs/reference/http.md", "docs/reference/messages.md"
RESPONSES, OLLAMA = "docs/reference/responses.md", "docs/reference/ollama.md"
ROW = re.compile(r"^\| `(\w+)` \| ([^|]*) \| [^|]+ \|", re.MULTILINE)

FIELDS = reference.http_fields()
CHAT, COMPLETION = FIELDS["ChatRequest"], FIELDS["CompletionRequest"]
TOKENIZE, DETOKENIZE = FIELDS["TokenizeRequest"], FIELDS["DetokenizeRequest"]
BOTH = {name for name in COMPLETION if CHAT.get(name) == COMPLETION[name]}
OF_TEMPLATES = {name for name in TOKENIZE if CHAT.get(name) == TOKENIZE[name]} - {"model", "messages"}

MESSAGE, COUNT = FIELDS["MessagesRequest"], FIELDS["CountTokensRequest"]
OLLAMA_CHAT, OLLAMA_PROMPT = FIELDS["OllamaChat"], FIELDS["OllamaCompletion"]
OLLAMA_BOTH = {name for name in OLLAMA_CHAT if OLLAMA_PROMPT.get(name) == OLLAMA_CHAT[name]}

SECTIONS = {
    (HTTP, "## Common fields"): (COMPLETION, BOTH),
    (HTTP, "## Chat completions"): (CHAT, set(CHAT) - BOTH - OF_TEMPLATES),
    (HTTP, "### Template fields"): (CHAT, OF_TEMPLATES),
    (HTTP, "## Completions"): (COMPLETION, set(COMPLETION) - BOTH),
    (HTTP, "### Tokenize fields"): (TOKENIZE, set(TOKENIZE) - OF_TEMPLATES - {"model"}),
    (HTTP, "### Detokenize fields"): (DETOKENIZE, set(DETOKENIZE) - {"model"}),
    (MESSAGES, "### Prompt fields"): (COUNT, set(COUNT)),
    (MESSAGES, "### Generation fields"): (MESSAGE, set(MESSAGE) - set(COUNT)),
    (RESPONSES, "### Request fields"): (FIELDS["ResponsesRequest"], set(FIELDS["ResponsesRequest"])),
    (OLLAMA, "## Common fields"): (OLLAMA_CHAT, OLLAMA_BOTH),
    (OLLAMA, "### Options"): (FIELDS["OllamaOptions"], set(FIELDS["OllamaOptions"])),
    (OLLAMA, "### Chat fields"): (OLLAMA_CHAT, set(OLLAMA_CHAT) - OLLAMA_BOTH),
    (OLLAMA, "### Generate fields"): (OLLAMA_PROMPT, set(OLLAMA_PROMPT) - OLLAMA_BOTH),
    (OLLAMA, "### Show fields"): (FIELDS["OllamaShow"], set(FIELDS["OllamaShow"])),
}


@pytest.mark.parametrize(("page", "heading"), SECTIONS)
def test_every_request_field_is_listed(page: str, heading: str) -> None:
    fields, names = SECTIONS[page, heading]
    text = text_of(page)
    start = text.index(f"\n{heading}\n") + 1
    following = re.search(r"^##", text[start + 4 :], re.MULTILINE)
    section = text[start : start + 4 + following.start() if following else None]
    assert dict(ROW.findall(section)) == {name: fields[name] for name in names}


def test_counted_fields_are_those_of_a_message() -> None:
    """The page has them in one table for both requests."""
    assert COUNT.items() <= MESSAGE.items()
