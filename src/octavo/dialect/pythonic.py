"""Parse calls in Python syntax: add(a=1, b=[2, 3]). Arguments are parsed as literals, never executed."""

import ast
import json
from typing import Any

from octavo.dialect.pieces import ParsedCall
from octavo.dialect.scan import END, NotACall, Scan, Sink
from octavo.dialect.syntax_tree import syntax_tree
from octavo.dialect.tools import Tools

MAX_CODE_CHARS = 1 << 16  # Python's parser is not designed for hostile input

OPENING, CLOSING = "([{", ")]}"
WRAPPERS = ("print",)  # models trained on code execution print results


def call_list(sink: Sink, tools: Tools) -> Scan[None]:
    """Read the rest of [f(a=1), g(b=2)] after the opening bracket. Each call is emitted when complete."""
    yield from _call(sink, tools)
    while (char := (yield)) not in ("]", END):
        if char == ",":
            yield from _call(sink, tools)


def _call(sink: Sink, tools: Tools) -> Scan[None]:
    code = ""
    depth = 0
    quote = ""
    while True:
        char = yield
        if char == END or len(code) > MAX_CODE_CHARS:
            raise NotACall
        code += char
        if not depth and char == "(" and code[:-1].strip() not in tools:
            raise NotACall
        if quote:
            if char == quote and not _is_escaped(code):
                quote = ""
        elif char in "'\"":
            quote = char
        else:
            depth += (char in OPENING) - (char in CLOSING)
        if depth < 0 or (not depth and char in ",]"):
            raise NotACall
        if not depth and char == ")":
            break
    sink.calls(calls_in(code, tools))


def _is_escaped(code: str) -> bool:
    """Return whether an odd number of backslashes precedes the last character."""
    before = code[:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def calls_in(code: str, tools: Tools) -> list[ParsedCall]:
    """Return the calls in the code.

    Raises NotACall unless each statement is a call of a known function with literal arguments.
    """
    if len(code) > MAX_CODE_CHARS:
        raise NotACall
    try:
        statements = syntax_tree(code.strip()).body
        calls = [_call_of(statement, tools) for statement in statements]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise NotACall from error
    if not calls:
        raise NotACall
    return calls


def _json(arguments: dict[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # raises ValueError for lone surrogates, which Python strings may contain and JSON may not
    return text


def _call_of(statement: ast.stmt, tools: Tools) -> ParsedCall:
    value = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(value, ast.Call) and ast.unparse(value.func) in WRAPPERS and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, ast.Call):
        raise NotACall
    name = ast.unparse(value.func)
    if name not in tools:
        raise NotACall
    names = tools.parameters[name]
    if len(value.args) > len(names):
        raise NotACall
    arguments: dict[str, Any] = dict(zip(names, map(ast.literal_eval, value.args), strict=False))
    for keyword in value.keywords:
        if keyword.arg is None:
            raise NotACall
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ParsedCall(name, _json(arguments))
