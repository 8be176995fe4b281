"""An untrusted template cannot escape the sandbox, run without limit, or exhaust memory."""

import time
import tracemalloc

import pytest

from octavo.errors import TemplateError
from octavo.text.assets import TextAssets
from octavo.text.chat_template import ChatTemplate

MAX_SECONDS = 0.3

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ raise_exception.__globals__['os'].system('id') }}",
    "{{ (''|attr('__class__')).__mro__ }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__ }}",
    "{% set n = namespace(__class__=1) %}",
    "{{ (messages|map(attribute='__class__')|list)[0].mro() }}",
    "{{ strftime_now.__closure__[0].cell_contents }}",
    "{{ ''.encode().decode.__self__ }}",
    "{% import 'os' as os %}{{ os }}",
]

GROWING = (
    "{{% set n = namespace(x={start}) %}}"
    "{{% for i in range(99) %}}{{% set n.x = {step} %}}{{% endfor %}}{{{{ n.x }}}}"
)
BIG = "{% set x = 'a' * 1000000 %}"

BLOWUPS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(99999) if i %}{% for j in range(99999) if j < 0 %}"
    "{% endfor %}{% endfor %}",
    "recursive loop": "{% for x in range(9) recursive %}{% if loop.depth < 40 %}"
    "{{ loop(range(9)) }}{% endif %}{% endfor %}",
    "endless loop": "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "filters": "{% for i in range(99999) %}{% set x = range(99999)|map('string')|list %}{% endfor %}",
    "loop over a string": BIG + "{% for i in range(99999) %}{% for c in x %}{% endfor %}{% endfor %}",
    "output": "{% for i in range(99999) %}{% for j in range(99999) %}word {% endfor %}{% endfor %}",
    "captured output": "{% set x %}{% for i in range(99999) %}{% for j in range(99999) %}word {% endfor %}"
    "{% endfor %}{% endset %}",
    "filtered output": "{% filter upper %}{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}"
    "{% endfilter %}",
    "string times": "{{ 'x' * 50000000 }}",
    "times string": "{{ 50000000 * 'x' }}",
    "list times": "{{ ([1] * 50000000) | length }}",
    "range": "{{ range(10 ** 9) | list }}",
    "power": "{{ 9 ** 999999999 }}",
    "squares": GROWING.format(start=3, step="n.x * n.x"),
    "doubling": GROWING.format(start="'ab'", step="n.x + n.x"),
    "joining": GROWING.format(start="'ab'", step="n.x ~ n.x"),
    "adding lists": GROWING.format(start="[1]", step="n.x + n.x"),
    "nesting lists": GROWING.format(start="'ab'", step="[n.x, n.x]"),
    "nesting tuples": GROWING.format(start="'ab'", step="(n.x, n.x)"),
    "nesting dicts": GROWING.format(start="'ab'", step="{'a': n.x, 'b': n.x}"),
    "nesting calls": GROWING.format(start="'ab'", step="dict(a=n.x, b=n.x)"),
    "padding": "{{ 'x'.ljust(10 ** 9) }}",
    "zeros": "{{ 'x'.zfill(10 ** 9) }}",
    "format width": "{{ '{:>999999999}'.format(1) }}",
    "format fields": BIG + "{{ ('{0}' * 100000).format(x) }}",
    "nested width": "{{ '{:{w}}'.format(1, w=10 ** 9) }}",
    "percent width": "{{ '%999999999d' % 1 }}",
    "percent filter": "{{ '%999999999d' | format(1) }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "replace": BIG + "{{ x.replace('a', x) }}",
    "replace filter": BIG + "{{ x | replace('a', x) }}",
    "replace nothing": BIG + "{{ x.replace('', x) }}",
    "join": BIG + "{{ x.join('a' * 100000) }}",
    "join filter": BIG + "{{ range(99999) | map('replace', '', x) | join }}",
    "join separator": BIG + "{{ range(99999) | join(x) }}",
    "indent": "{{ ('a\\n' * 1000000) | indent(9999) }}",
    "indented JSON": "{{ [[1]] | tojson(indent=10 ** 9) }}",
    "tabs": "{{ ('\\t' * 1000000).expandtabs(1000000) }}",
    "translate": BIG + "{{ x.translate({97: x}) }}",
    "bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "rounding": "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    "sum of lists": "{{ ([[1] * 1000] * 100) | sum(start=[]) }}",
    "deep": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


def render(source: str) -> str:
    chat = ChatTemplate(TextAssets(tokenizer_json="", chat_template=source), max_seconds=MAX_SECONDS)
    return chat.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("source", ESCAPES)
def test_templates_cannot_escape_the_sandbox(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize("name", BLOWUPS)
def test_expensive_templates_are_stopped_in_time(name: str) -> None:
    start = time.process_time()  # CPU time does not depend on other load
    with pytest.raises(TemplateError):
        render(BLOWUPS[name])
    assert time.process_time() - start < 20 * MAX_SECONDS  # without a limit, they take minutes


@pytest.mark.parametrize("name", [name for name in BLOWUPS if "loop" not in name and "macro" not in name])
def test_expanding_templates_use_little_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            render(BLOWUPS[name])
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_long_ordinary_conversations_are_rendered() -> None:
    """A conversation of half a million characters, with common operations of templates."""
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": "word " * 500} for i in range(200)]
    source = (
        "{% set ns = namespace(all='', seen=[]) %}"
        "{% for m in messages %}{% set ns.seen = ns.seen + [m.role] %}"
        "{% if messages | selectattr('role', 'equalto', 'user') | list | length > 3 %}{% endif %}"
        "{{ '<' ~ m.role ~ '>' + (m.content | trim | replace('word', 'Word')).upper() + '%s' % loop.index }}"
        "{{ m | tojson(indent=4) | length }}{{ ', '.join(['a', 'b']) }}{{ '{}'.format(m.role) }}"
        "{% endfor %}"
        "{{ ns.seen | length }}{{ 1234567 | string }}{{ [20250101] | first }}{{ 3.14159 | round(2) }}"
    )
    chat = ChatTemplate(TextAssets(tokenizer_json="", chat_template=source))
    rendered = chat.render(messages)
    assert len(rendered) > 500_000
    assert rendered.endswith("200" + "1234567" + "20250101" + "3.14")
