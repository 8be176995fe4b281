"""Masks agree with an independent matcher, which checks for every token whether the text is still a prefix of
an answer. Where the following bytes are forced, the mask allows only the token that the tokenizer would
produce."""

import ctypes
import json
import random
from collections.abc import Callable

import pytest
import regex

from octavo.grammar.compiler import compile_grammar
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.vocabulary import Vocabulary, make_vocabulary
from octavo.protocol import GrammarKind, GrammarSpec

# Parts of words, words that span parts of a grammar, two tokens with equal bytes, and one without bytes.
PIECES = [
    *(bytes([byte]) for byte in b'{}[]":, \n\tabcdefrstulnxyz0123456789-+.\xc3\xa4'),
    b'{"', b'"}', b'": ', b'",', b'"a', b'a"', b'a":', b", ", b',"b', b'\n"', b"  ", b" \n", b"\n  ", b"\n\t",
    b"true", b"tru", b"ue", b"false", b"als", b"e}", b"null", b"12", b"20", b"120", b"00", b"1}", b"0}",
    b"ab", b"abc", b"bc", b"cab", b"aa", b"bb", b"xx", b"xy", b"-1", b"\xc3\xa4", b"a", b"",
]  # fmt: skip
END, SPECIAL = len(PIECES), len(PIECES) + 1
SPACE = r"(?: |\n[ \t]{0,32})?"


def spaced(*parts: str) -> str:
    return SPACE.join(parts)


# A grammar, and an equivalent expression for the `regex` package.
GRAMMARS: dict[str, tuple[GrammarSpec, str]] = {
    "regex": (GrammarSpec(GrammarKind.REGEX, "(ab|abc|x{2,3})+-?[0-9]*"), "(ab|abc|x{2,3})+-?[0-9]*"),
    "umlauts": (GrammarSpec(GrammarKind.REGEX, "[äa]{1,3}b"), "[äa]{1,3}b"),
    "choice": (
        GrammarSpec(GrammarKind.CHOICE, json.dumps(["ab", "abc", "a.b", "x\ny", "[0-9]", "ä"])),
        r"ab|abc|a\.b|x\ny|\[0-9\]|ä",
    ),
    "a record": (
        GrammarSpec(
            GrammarKind.JSON_SCHEMA,
            json.dumps(
                {
                    "type": "object",
                    "properties": {
                        "a": {"type": "boolean"},
                        "b": {"type": "integer", "minimum": 0, "maximum": 120},
                    },
                    "required": ["a"],
                    "additionalProperties": False,
                }
            ),
        ),
        spaced(r"\{", '"a"', ":", "(?:true|false)", "")
        + "(?:" + spaced(",", '"b"', ":", "(?:120|1[01][0-9]|[1-9]?[0-9])", "") + r")?\}",
    ),
    "a list": (
        GrammarSpec(
            GrammarKind.JSON_SCHEMA,
            json.dumps(
                {"type": "array", "items": {"enum": ["ab", "abc", None]}, "minItems": 1, "maxItems": 2}
            ),
        ),
        spaced(r"\[", '(?:"ab"|"abc"|null)', "") + "(?:" + spaced(",", '(?:"ab"|"abc"|null)', "") + r")?\]",
    ),
    "lark": (
        GrammarSpec(GrammarKind.LARK, 'start: "a" start "b" | "c"'),
        "(a(?1)b|c)",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary([*PIECES, b"<end>", b"ab"], [END], [END, SPECIAL], encode)


def encode(text: str) -> list[int]:
    """Encode greedily, with the longest piece first."""
    data, ids = text.encode(), list[int]()
    while data:
        ids.append(
            max(range(len(PIECES)), key=lambda i: len(PIECES[i]) if data.startswith(PIECES[i]) else -1)
        )
        data = data[len(PIECES[ids[-1]]) :]
    return ids


def allowed(matcher: GrammarMatcher) -> set[int]:
    words = (ctypes.c_uint32 * -(-(len(PIECES) + 2) // 32))()
    matcher.fill(ctypes.addressof(words), ctypes.sizeof(words))
    return {token for token in range(32 * len(words)) if words[token // 32] >> token % 32 & 1}


def begins_an_answer(expression: str) -> Callable[[bytes], bool]:
    """Return a check of bytes: half a character matches every character that begins with it."""
    pattern = regex.compile(expression)

    def check(data: bytes) -> bool:
        whole = data.decode("utf-8", "ignore")
        tail = data[len(whole.encode()) :]
        candidates = [whole] if not tail else [whole + "ä"] if "ä".encode().startswith(tail) else []
        return any(pattern.fullmatch(text, partial=True) for text in candidates)

    return check


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_agree_with_an_independent_matcher(vocabulary: Vocabulary, name: str) -> None:
    spec, expression = GRAMMARS[name]
    compiled = compile_grammar(spec, vocabulary)
    begins = begins_an_answer(expression)
    dice = random.Random(name)
    met, num_forced = set(), 0
    for _ in range(25):
        matcher, text = GrammarMatcher(compiled), b""
        for _ in range(30):
            found = allowed(matcher)
            expected = {token for token, piece in enumerate(PIECES) if piece and begins(text + piece)}
            is_whole = regex.fullmatch(expression, text.decode("utf-8", "ignore")) is not None
            is_whole = is_whole and text.decode("utf-8", "ignore").encode() == text
            if found != expected | ({END} if is_whole else set()):
                (forced,) = found
                assert not is_whole, text
                assert forced in expected, text
                assert all(is_one_way(PIECES[forced], PIECES[other]) for other in expected), text
                num_forced += 1
                expected = found
            assert matcher.is_accepting == is_whole
            met.add(text)
            if not expected:
                break
            token = dice.choice(sorted(expected))
            matcher.append(token)
            text += PIECES[token]
    assert len(met) > 10
    assert num_forced < 0.5 * 25 * 30


def is_one_way(a: bytes, b: bytes) -> bool:
    return a.startswith(b) or b.startswith(a)


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_matcher_is_a_function_of_its_tokens(vocabulary: Vocabulary, name: str) -> None:
    """Replayed from any point, or rolled back from a draft, it gives the same masks."""
    compiled = compile_grammar(GRAMMARS[name][0], vocabulary)
    dice = random.Random(name)
    matcher, tokens, masks = GrammarMatcher(compiled), [], []
    for _ in range(12):
        masks.append(allowed(matcher))
        choices = sorted(masks[-1] - {END})
        if not choices:
            break
        tokens.append(dice.choice(choices))
        matcher.append(tokens[-1])
    for length, mask in enumerate(masks):
        assert allowed(GrammarMatcher(compiled, tokens[:length])) == mask
    for length in range(len(masks) - 1, -1, -1):
        if length < len(tokens):
            matcher.roll_back(1)
        assert allowed(matcher) == masks[length]


@pytest.mark.parametrize("name", GRAMMARS)
def test_forced_tokens_are_the_only_allowed_ones(vocabulary: Vocabulary, name: str) -> None:
    """Appending forced tokens at once equals appending them one by one."""
    compiled = compile_grammar(GRAMMARS[name][0], vocabulary)
    dice = random.Random(name)
    num_forced = 0
    for _ in range(20):
        slow, fast = GrammarMatcher(compiled), GrammarMatcher(compiled)
        for _ in range(12):
            for token in fast.append_forced(100):
                assert allowed(slow) == {token}
                slow.append(token)
                num_forced += 1
            assert slow.forced is None
            choices = allowed(slow)
            assert choices == allowed(fast)
            choices -= {END}
            if not choices:
                break
            token = dice.choice(sorted(choices))
            slow.append(token)
            fast.append(token)
    assert num_forced > 0 or name in ("regex", "umlauts")
