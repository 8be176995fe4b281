"""jinja2's immutable sandbox with limits on the run time and memory of a template.

Python code cannot interrupt a single long operation, so no single operation may be long:

1. No value in a template is larger than `max_chars` when written out. Operations that could create a larger
   value (`*`, `**`, `%`, `+`, `~`, list and dict literals, growing methods and filters) are measured before
   they run.
2. All values created in one render, kept or not, total at most `_WORK_FACTOR * max_chars`: a memory limit.
3. Every loop iteration, every call and every filter checks the clock.

A template therefore exceeds its time limit by at most one linear operation on one bounded value.
"""

import functools
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_WORK_FACTOR = 16
_MAX_DEPTH = 100
_STEP_EVERY = 10_000  # items between clock checks while a value is measured
_MAX_INTEGER_BITS = 4096
_MAX_WIDTH = 10_000
_POINTER_CHARS = 8  # charge for an entry of a list

# Their results can be much larger than their input, or are random. Chat templates do not need them.
_REMOVED_FILTERS = ("batch", "center", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr")
_FORBIDDEN_METHODS = ("encode", "expandtabs", "format_map", "maketrans", "to_bytes", "translate")
_PADDING_METHODS = ("center", "ljust", "rjust", "zfill")


class LimitExceeded(Exception):
    """A template exceeded one of its limits."""


class Budget:
    """The time and work that remain for one render."""

    def __init__(self, max_seconds: float, max_chars: int) -> None:
        self._max_seconds = max_seconds
        self._deadline = time.monotonic() + max_seconds
        self._max_chars = max_chars
        self._work_left = _WORK_FACTOR * max_chars

    def step(self) -> None:
        if time.monotonic() > self._deadline:
            raise LimitExceeded(f"it ran for longer than {self._max_seconds:g} s")

    def charge(self, chars: int) -> None:
        self._work_left -= chars
        if chars > self._max_chars or self._work_left < 0:
            raise LimitExceeded(f"it creates values larger than {self._max_chars} characters")

    def admit(self, value: Any) -> Any:
        """Charge for and return a value that is a new string or refers only to existing values."""
        self.step()
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.charge(_POINTER_CHARS * len(value))
        return value

    def admit_built(self, value: Any) -> Any:
        """Charge for and return a value that may contain one object several times.

        Written out, it can be larger than the sum of its distinct parts.
        """
        self.charge(self.size(value))
        return value

    def size(self, value: Any) -> int:
        """Return the approximate number of characters of the value when written out.

        Raises LimitExceeded if it is more than `max_chars`.
        """
        return self.size_and_depth(value)[0]

    def size_and_depth(self, value: Any) -> tuple[int, int]:
        total, deepest, pending = 0, 0, [(value, 0)]
        for num_seen in itertools.count(1):
            if num_seen % _STEP_EVERY == 0:
                self.step()
            item, depth = pending.pop()
            deepest = max(depth, deepest)
            total += len(item) if isinstance(item, str) else _POINTER_CHARS
            if total > self._max_chars or depth > _MAX_DEPTH:
                raise LimitExceeded(f"it creates values larger than {self._max_chars} characters")
            if isinstance(item, dict):
                pending += [(part, depth + 1) for pair in item.items() for part in pair]
            elif isinstance(item, (list, tuple)):
                pending += [(part, depth + 1) for part in item]
            if not pending:
                break
        return total, deepest


class PlainNamespace(Namespace):
    """Its text form is one word, so that it can neither hide its size nor contain itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        super().__init__()
        for name, value in attributes.items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot have an attribute {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """One per chat template. Threads may render concurrently, each with its own budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # compile-time evaluation would not be limited by a budget
            extensions=[GenerationTag, loopcontrols],
            finalize=_finalize,
        )
        self._active = threading.local()
        self._literal_chars = 0
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters["sum"] = _sum_numbers
        self.filters = {name: self._guarded_filter(name, f) for name, f in self.filters.items()}
        self.filters.update(_COUNTED_FILTERS)
        del self.globals["lipsum"]
        self.globals["dict"] = _make_dict
        self.globals["namespace"] = PlainNamespace

    @property
    def budget(self) -> Budget:
        budget: Budget = self._active.budget
        return budget

    def generate(self, template: jinja2.Template, variables: dict[str, Any], budget: Budget) -> Iterator[str]:
        """Yield pieces of the output. The caller reads all of them in one thread before it renders again."""
        self._active.budget = budget
        for piece in template.generate(variables):
            budget.step()
            yield piece

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        self._literal_chars = max(self._literal_chars, _literal_chars(source))
        return super()._generate(_CountingTransformer().visit(source), *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.budget.step()
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if operator == "%" and isinstance(left, str):
            self.budget.charge(_formatted_size(self.budget, left, right))
        elif operator == "*":
            self.budget.charge(_product_size(self.budget, left, right))
        elif operator == "**" and numbers:
            _check_power(left, right)
        elif operator == "+" and not numbers:
            self.budget.charge(self.budget.size(left) + self.budget.size(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.step()
        if isinstance(function, LoopContext):  # a recursive loop is called with its items
            args = tuple(_counted(self, argument, self._literal_chars) for argument in args)
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            args = _measured_method(self.budget, owner, getattr(method, "__name__", ""), args, kwargs)
        result = super().call(context, function, *args, **kwargs)
        return self.budget.admit_built(result) if isinstance(result, dict) else self.budget.admit(result)

    def _guarded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        num_passed = 1 if hasattr(function, "jinja_pass_arg") else 0  # jinja2's context or environment

        @functools.wraps(function)  # preserves jinja_pass_arg
        def guarded(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.step()
            passed, values = args[:num_passed], args[num_passed:]
            if name == "join":
                separator = values[1] if len(values) > 1 else kwargs.get("d", "")
                values = (_measured_items(budget, values[0], separator), *values[1:])
            elif name in _FILTER_SIZES:
                budget.charge(_FILTER_SIZES[name](budget, *values, **kwargs))
            return budget.admit(function(*passed, *values, **kwargs))

        return guarded


class _CountingTransformer(NodeTransformer):
    """Wraps a counting filter around operations that the sandbox does not intercept."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _filter(node.iter, "counted loop", nodes.Const(_literal_chars(node)))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "counted concat")

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "counted literal")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "counted literal")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "counted literal") if node.ctx == "load" else node


def _literal_chars(node: nodes.Node) -> int:
    return sum(len(data.data) for data in node.find_all(nodes.TemplateData))


def _filter(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


@jinja2.pass_environment
def _counted(environment: BoundedEnvironment, items: Iterable[Any], chars: int) -> Iterator[Any]:
    budget = environment.budget
    for item in items:
        budget.step()
        budget.charge(chars)
        yield item


@jinja2.pass_environment
def _concatenated(environment: BoundedEnvironment, parts: list[Any]) -> str:
    environment.budget.step()
    environment.budget.charge(environment.budget.size(parts))
    return "".join(map(str, parts))


@jinja2.pass_environment
def _built(environment: BoundedEnvironment, value: Any) -> Any:
    return environment.budget.admit_built(value)


# Templates cannot use these filters: the names of filters in templates contain no spaces.
_COUNTED_FILTERS: dict[str, Callable[..., Any]] = {
    "counted loop": _counted,
    "counted concat": _concatenated,
    "counted literal": _built,
}


@jinja2.pass_context
def _finalize(context: Context, value: Any) -> Any:
    environment = context.environment
    assert isinstance(environment, BoundedEnvironment)
    environment.budget.charge(environment.budget.size(value))
    return value


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


@jinja2.pass_environment
def _to_json(  # noqa: PLR0917 (templates rely on the order)
    environment: BoundedEnvironment,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON, as in transformers; jinja2's own filter escapes it for HTML."""
    size, depth = environment.budget.size_and_depth(value)
    margin = 0 if indent is None else _checked_width(indent) * depth
    environment.budget.charge(size + (size // _POINTER_CHARS) * margin)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _sum_numbers(values: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> Any:
    total = start
    for value in values:
        item = value if attribute is None else value[attribute]
        if not isinstance(item, (int, float)) or not isinstance(total, (int, float)):
            raise jinja2.exceptions.FilterArgumentError("sum accepts only numbers")
        total += item
    return total


def _checked_width(width: int | str) -> int:
    chars = len(width) if isinstance(width, str) else int(width)
    if not 0 <= chars <= _MAX_WIDTH:
        raise LimitExceeded(f"it uses a width or precision of {chars}; the limit is {_MAX_WIDTH}")
    return chars


def _check_power(base: float, exponent: float) -> None:
    if not isinstance(base, int) or not isinstance(exponent, int) or exponent <= 0:
        return
    if base.bit_length() * exponent > _MAX_INTEGER_BITS:
        raise LimitExceeded(f"it creates integers of more than {_MAX_INTEGER_BITS} bits")


def _product_size(budget: Budget, left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS:
            raise LimitExceeded(f"it creates integers of more than {_MAX_INTEGER_BITS} bits")
        return 0
    if isinstance(left, int):
        left, right = right, left
    if isinstance(left, (str, list, tuple)) and isinstance(right, int):
        return budget.size(left) * max(right, 0)
    return 0


def _formatted_size(budget: Budget, pattern: str, values: Any) -> int:
    """Return an upper bound: every number in the pattern counts as a width, every field shows all values."""
    if "*" in pattern or re.search(r"\{[^{}]*\{", pattern):
        raise LimitExceeded("it takes the width of a formatted value from another value")
    widths = sum(int(digits[:9]) for digits in re.findall(r"\d+", pattern))
    num_fields = pattern.count("%") + pattern.count("{")
    return len(pattern) + widths + num_fields * budget.size(values)


def _replaced_size(_budget: Budget, text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    return len(str(text)) + str(text).count(str(old)) * len(str(new))


def _indented_size(_budget: Budget, text: Any, width: int | str = 4, *_: Any, **__: Any) -> int:
    return len(str(text)) + (str(text).count("\n") + 1) * _checked_width(width)


def _rounded_size(_budget: Budget, _value: Any, precision: int = 0, *_: Any, **__: Any) -> int:
    return _checked_width(abs(precision))


def _format_filter_size(budget: Budget, pattern: Any, *values: Any, **named: Any) -> int:
    return _formatted_size(budget, str(pattern), [*values, *named.values()])


_FILTER_SIZES: dict[str, Callable[..., int]] = {
    "format": _format_filter_size,
    "indent": _indented_size,
    "replace": _replaced_size,
    "round": _rounded_size,
}


def _measured_items(budget: Budget, items: Iterable[Any], separator: Any) -> list[Any]:
    """Read the items of a join one by one with clock checks, and charge for the result in advance."""
    read = []
    for item in items:
        budget.step()
        budget.charge(budget.size(item) + len(str(separator)))
        read.append(item)
    budget.charge(budget.size(read) + len(read) * len(str(separator)))
    return read


def _measured_method(
    budget: Budget, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Charge for the method's result before the call; return the arguments."""
    if name in _FORBIDDEN_METHODS or isinstance(owner, bytes):
        raise jinja2.exceptions.SecurityError(f"a chat template may not call {name}()")
    if name in _PADDING_METHODS:
        budget.charge(sum(abs(value) for value in args if isinstance(value, int)))
    elif name == "replace":
        budget.charge(_replaced_size(budget, owner, *args))
    elif name == "format":
        budget.charge(_formatted_size(budget, owner, [*args, *kwargs.values()]))
    elif name == "join" and args:
        args = (_measured_items(budget, args[0], owner), *args[1:])
    return args
