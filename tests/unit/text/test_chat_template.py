import enum
import threading
from datetime import datetime

import pytest

from data.json_types import Json
from octavo.errors import TemplateError
from octavo.text.assets import TextAssets
from octavo.text.chat_template import MAX_DEPTH, MAX_TEMPLATE_CHARS, ChatTemplate

USER = {"role": "user", "content": "hi"}
SIMPLE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def template(source: str | None, named_templates: dict[str, str] | None = None) -> ChatTemplate:
    assets = TextAssets(
        tokenizer_json="", bos_token="<s>", chat_template=source, named_templates=named_templates or {}
    )
    return ChatTemplate(assets, now=lambda: datetime(2024, 7, 26))


def test_messages_special_tokens_and_the_generation_prompt() -> None:
    assert template(SIMPLE).render([USER]) == "<s><user>hi</><assistant>"
    assert template(SIMPLE).render([USER], add_generation_prompt=False) == "<s><user>hi</>"
    assert template("{{ eos_token is defined }}").render([USER]) == "False"


def test_a_continued_message_stays_open() -> None:
    conversation = [USER, {"role": "assistant", "content": "Well, "}]
    rendered = template(SIMPLE).render(conversation, continue_final_message=True)
    assert rendered == "<s><user>hi</><assistant>Well, "
    trimming = template("{% for m in messages %}{{ m.content | trim }}|{% endfor %}")
    assert trimming.render(conversation, continue_final_message=True) == "hi|Well,"
    with pytest.raises(TemplateError, match="does not render"):
        template("{{ messages[0].content }}").render(conversation, continue_final_message=True)
    with pytest.raises(TemplateError, match="no text"):
        template(SIMPLE).render([{"role": "assistant"}], continue_final_message=True)


def test_the_tool_template_is_used_with_tools() -> None:
    chat = template("plain", named_templates={"tool_use": "{{ tools[0] | tojson }}"})
    assert chat.render([USER]) == "plain"
    assert chat.render([USER], tools=[{"name": "é<b>"}]) == '{"name": "é<b>"}'
    assert template("{{ tools }}").render([USER]) == "None"


def test_tojson_matches_transformers() -> None:
    source = "{{ x|tojson }}{{ x|tojson(indent=2) }}{{ x|tojson(separators=(',',':'), sort_keys=true) }}"
    rendered = template(source).render([USER], x={"b": "ü&<'", "a": [1]})
    assert rendered == (
        '{"b": "ü&<\'", "a": [1]}' + '{\n  "b": "ü&<\'",\n  "a": [\n    1\n  ]\n}' + '{"a":[1],"b":"ü&<\'"}'
    )


def test_the_date_comes_from_the_given_clock() -> None:
    assert template("{{ strftime_now('%d %b %Y') }}").render([USER]) == "26 Jul 2024"


def test_generation_marks_loop_controls_and_namespaces_work() -> None:
    source = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}"
        "{% if m.role == 'user' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    )
    assert template(source).render([USER, {"role": "assistant", "content": "yes"}]) == "yes1"


def test_the_callers_messages_are_not_modified() -> None:
    message = {"role": "assistant", "content": [{"type": "text", "text": "a"}], "thinking": "b"}
    before = repr(message)
    template("{{ messages }}").render([message], continue_final_message=True)
    assert repr(message) == before


def test_reasoning_is_available_under_every_name() -> None:
    source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    assert template(source).render([{**USER, "reasoning": "r"}]) == "rr"


def test_templates_see_plain_values_only() -> None:
    class Role(enum.StrEnum):
        USER = "user"

    source = "{{ messages[0].role }}{{ messages[0].role.name is defined }}"
    assert template(source).render([{"role": Role.USER, "content": ""}]) == "userFalse"
    with pytest.raises(TemplateError, match="plain JSON values, not object"):
        template(source).render([{"role": "user", "content": object()}])


def test_variables_may_have_any_name_but_limited_depth() -> None:
    assert template("{{ self_ }}{{ context }}").render([USER], self=1, context=2, self_=3) == "32"
    nested: Json = "x"
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert template("{{ a is defined }}").render([USER], a=nested) == "True"
    with pytest.raises(TemplateError, match="at most 100 levels"):
        template(SIMPLE).render([USER], a=[[nested]])


def test_errors_contain_no_memory_addresses() -> None:
    with pytest.raises(TemplateError, match="rejected these messages") as caught:
        template("{{ raise_exception(strftime_now) }}").render([USER])
    assert "<function" in str(caught.value)
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("messages", [[], "hi", [1], {"role": "user"}])
def test_invalid_conversations_are_rejected(messages: Json) -> None:
    with pytest.raises(TemplateError, match=r"[Mm]essages"):
        template(SIMPLE).render(messages)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "no chat template.*`generate`"),
        ("{% for %}", "not valid"),
        ("x" * (MAX_TEMPLATE_CHARS + 1), "limit"),
        ("{{ raise_exception('roles must alternate') }}", "rejected these messages.*roles must alternate"),
        ("{{ messages[0].absent.more }}", "failed.*UndefinedError"),
        ("{{ 1 / 0 }}", "failed.*ZeroDivisionError"),
        ("{% include '/etc/hostname' %}", "failed"),
    ],
)
def test_failures_are_explained(source: str | None, message: str) -> None:
    """Errors occur only when rendering: a model with an invalid template can still generate."""
    chat = template(source)
    with pytest.raises(TemplateError, match=message):
        chat.render([USER])


def test_threads_have_their_own_limits() -> None:
    chat = ChatTemplate(
        TextAssets(tokenizer_json="", chat_template="{% for i in range(n) %}{{ x }}{% endfor %}"),
        max_chars=1000,
    )
    results: dict[int, str] = {}

    def render(n: int) -> None:
        try:
            results[n] = chat.render([USER], n=n, x="y" * 10)
        except TemplateError:
            results[n] = "stopped"

    threads = [threading.Thread(target=render, args=(n,)) for n in (99, 100, 101, 5000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: len(text) if text != "stopped" else text for n, text in results.items()} == {
        99: 990,
        100: 1000,
        101: "stopped",
        5000: "stopped",
    }
