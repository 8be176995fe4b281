"""The file of API keys: its lines, and an error with a line number for everything that is invalid."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import ServerOptions
from octavo.errors import ConfigError
from octavo.fairness.tenant import Tenant
from octavo.server.http.key_file import (
    LIMITS,
    OPTIONS,
    KeyFile,
    KeyLimits,
    KeyRole,
    NameOptions,
    hashed_key,
    parse_key_file,
)
from octavo.server.http.key_source import KeyTable
from octavo.server.http.keys import Keys

EXAMPLE = """\
# name   key              options
alice sk-alice-26b weight=3 requests_per_minute=600 tokens_per_minute=100000 max_streams=20 max_connections=50
alice    sk-alice-2026a   expires=2026-12-01T00:00:00Z     # rotation: the old key works until it expires
ops      sk-operator-1    role=operator
sk-a-key-without-a-name

  # bob  sk-not-a-key
sk-base64-padded==  weight=0.5
"""


def parsed(text: str) -> KeyFile:
    return parse_key_file(text.encode(), "keys")


def test_the_documented_example() -> None:
    file = parsed(EXAMPLE)
    nameless = [hashed_key("", secret) for secret in ("sk-a-key-without-a-name", "sk-base64-padded==")]
    expires = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    assert file.keys == (
        hashed_key("alice", "sk-alice-26b"),
        hashed_key("alice", "sk-alice-2026a", expires),
        hashed_key("ops", "sk-operator-1"),
        *nameless,
    )
    assert file.names == {
        "alice": NameOptions(weight=3.0, limits=KeyLimits(600, 100_000, 20, 50)),
        "ops": NameOptions(role=KeyRole.OPERATOR),
        nameless[0].name: NameOptions(),
        nameless[1].name: NameOptions(weight=0.5),
    }


def test_every_name_has_its_fraction_of_the_total_weight() -> None:
    table = KeyTable.of(parsed("alice sk-alice-1 weight=2\nalice sk-alice-2\nbob sk-bob-01\n"), "single")
    name = hashed_key("", "single").name
    assert {key.tenant for key in table.keys.values()} == {
        Tenant("alice", 2.0, 0.5),
        Tenant("bob", 1.0, 0.25),
        Tenant(name, 1.0, 0.25),
    }
    assert {key.tenant.name: key.role for key in table.keys.values()} == {
        "alice": KeyRole.INFERENCE,
        "bob": KeyRole.INFERENCE,
        name: KeyRole.OPERATOR,
    }


def test_options_may_be_on_any_line_of_a_name_and_may_be_repeated() -> None:
    file = parsed("a secret-one\na secret-two weight=2\na secret-three weight=2.0 max_streams=1\n")
    assert file.names == {"a": NameOptions(weight=2.0, limits=KeyLimits(max_streams=1))}


INVALID = {
    "secret-one\nsecret-one": "same key",
    "a secret-one\nb secret-one": "same key",
    "a secret-one weight=1\na secret-two weight=2": "weight is given twice",
    "a secret-one role=operator\na secret-two role=inference": "role is given twice",
    "a secret-one max_streams=1\na secret-two max_streams=2": "max_streams is given twice",
    "a secret-one\na secret-two weight=1 weight=2": "weight is given twice",
    "a short": "at least 8 characters",
    "ok-secret\nshort": "at least 8 characters",
    "a schlüssel-eins": "printable ASCII",
    "a secret-one secret-two": "word 3 is not an option",
    "a secret-one wieght=3": "word 3 is not an option",
    "secret-one wieght=3": "word 2 is neither an option",
    "secret-one requests_per_min=": "word 2 is neither an option",
    "a key=with=equals": "word 2 is neither an option",
    "weight=3 secret-one": "begins with an option",
    "a secret-one weight=0": "weight must be",
    "a secret-one weight=1001": "weight must be",
    "a secret-one weight=nan": "weight must be",
    "a secret-one weight=": "weight must be",
    "a secret-one requests_per_minute=0": "requests_per_minute must be",
    "a secret-one tokens_per_minute=1e3": "tokens_per_minute must be",
    "a secret-one max_streams=-1": "max_streams must be",
    "a secret-one max_connections=99999999999999": "max_connections must be",
    "a secret-one role=root": "role must be",
    "a secret-one expires=2026-12-01T00:00:00": "time zone",
    "a secret-one expires=2026-12-01": "time zone",
    "a secret-one expires=soon": "time zone",
    "a/b secret-one": "the name",
    f"{'a' * 65} secret-one": "the name",
}


@pytest.mark.parametrize("text", INVALID)
def test_an_error_names_the_line_and_shows_no_key(text: str) -> None:
    lines = text.split("\n")
    with pytest.raises(ConfigError, match=INVALID[text]) as raised:
        parsed(f"# a comment\n\nfirst the-first-secret\n{text}\nlast the-last-secret\n")
    message = str(raised.value)
    assert message.startswith(f"api_key_file: keys, line {3 + len(lines)}: ")
    words = {word for line in lines for word in line.split() if len(word) > 1 and "=" not in word}
    assert not [word for word in words if word in message.partition(": create")[0]]


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"# sk-commented\n", b"\xff\xfekeys", b"x" * (1 << 20) + b"yz"]
)
def test_files_without_keys_and_unreadable_files_are_errors(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"api_key_file: .*keys"):
        parse_key_file(content, "keys")


def test_a_byte_order_mark_and_windows_line_ends_are_ignored() -> None:
    text = "# ours\r\nalice sk-alice-1 weight=2\r\n"
    assert parse_key_file(b"\xef\xbb\xbf" + text.encode(), "keys") == parsed(text.replace("\r", ""))


def test_a_key_in_the_file_must_differ_from_the_single_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice sk-alice-1\n")
    with pytest.raises(ConfigError, match="api_key") as raised:
        Keys.from_options(ServerOptions(api_key="sk-alice-1", api_key_file=str(tmp_path / "keys")))
    assert "sk-alice" not in str(raised.value)


SECRETS = st.text("abcXYZ019_-#", min_size=8, max_size=12).filter(lambda secret: not secret.startswith("#"))
NAMES = st.text("abAB01._@-", min_size=1, max_size=10)
SPACE = st.sampled_from((" ", "  ", "\t"))
COMMENTS = st.builds("{}#{}".format, st.sampled_from(("", "  ", "\t")), st.text("ab #=12-", max_size=20))
BLANK = st.sampled_from(("", " ", "\t ", "\r"))
VALUES = {"weight": "2", "role": "operator", "expires": "2030-01-01T00:00:00+02:00"} | dict.fromkeys(
    LIMITS, "7"
)


@st.composite
def key_lines(draw: st.DrawFn) -> tuple[str, str, str]:
    """Return the name, the secret and the line of a key."""
    name, secret = draw(st.one_of(st.just(""), NAMES)), draw(SECRETS)
    options = [
        f"{option}={VALUES[option]}" for option in draw(st.lists(st.sampled_from(OPTIONS), unique=True))
    ]
    line = draw(SPACE).join(word for word in (name, secret, *options) if word)
    return name, secret, line + draw(st.one_of(st.just(""), st.builds(" {}".format, COMMENTS)))


@given(st.lists(key_lines(), min_size=1, unique_by=lambda row: row[1]), st.data())
def test_comments_and_blank_lines_never_become_keys(
    rows: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    lines = [line for _, _, line in rows]
    for ignored in data.draw(st.lists(st.one_of(COMMENTS, BLANK))):
        lines.insert(data.draw(st.integers(0, len(lines))), ignored)
    found = parsed("\n".join(lines)).keys
    assert [(key.name, key.digest) for key in found] == [
        (key.name, key.digest) for key in (hashed_key(name, secret) for name, secret, _ in rows)
    ]


@given(st.text("ab1=#. \n\tweight-é", max_size=60))
def test_any_text_is_parsed_or_gets_an_error_with_a_line(text: str) -> None:
    message, num_keys = "", 0
    try:
        num_keys = len(parsed(text).keys)
    except ConfigError as error:
        message = str(error)
    lines = [line.split() for line in text.split("\n")]
    if not message:
        assert num_keys == sum(bool(words) and not words[0].startswith("#") for words in lines)
        return
    found = re.match(r"api_key_file: keys(, line (\d+): | has no key)", message)
    assert found, message
    assert found[2] is None or lines[int(found[2]) - 1]
