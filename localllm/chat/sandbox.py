"""The Jinja environment of chat templates: sandboxed and bounded; it knows nothing of messages.

Jinja's own sandbox keeps a template away from Python's internals, but not from looping for ever or filling the
memory. Here each round of a loop, each macro call and each string that can grow is charged to a Budget.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from jinja2 import TemplateRuntimeError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_NAMESPACE
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from localllm.chat.budget import Budget

# The stock filters without those that build text of any length from a number, or that no chat template uses.
FILTER_NAMES = frozenset(
    {"abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby"}
    | {"int", "items", "last", "length", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "safe"}
    | {"select", "selectattr", "sort", "sum", "title", "trim", "truncate", "unique", "upper", "wordcount"}
)
GLOBAL_NAMES = frozenset({"range", "dict", "cycler", "joiner", "namespace"})
UNSAFE_STR_METHODS = frozenset({"format_map", "maketrans", "translate"})
PADDING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
MAX_INDENT = 32
MAX_INT_BITS = 4096
WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\d{4}|\*)")
WIDE_SPEC = re.compile(r"\d{4}")


class RefusedByTemplateError(TemplateRuntimeError):
    """The template called `raise_exception`: its own words about the conversation."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what training reads; when rendering it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (declared so by the base class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedCodeGenerator(CodeGenerator):
    """Sends `a ~ b`, which the sandbox cannot intercept, through the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (the visitor's naming)
        self.write("environment.concat_bounded((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class BoundedFormatter(SandboxedFormatter):
    """`str.format` without access to internals, charged, and without wide fields."""

    def __init__(self, environment: ChatEnvironment) -> None:
        super().__init__(environment)
        self._budget = environment.budget

    def format_field(self, value: Any, format_spec: str) -> str:
        if WIDE_SPEC.search(format_spec):
            raise TemplateRuntimeError("a field width in the chat template is too large")
        self._budget.spend_value(value)
        return str(super().format_field(value, format_spec))


class ChatEnvironment(SandboxedEnvironment):
    """An environment for the templates found in GGUF files. One rendering at a time: the budget is its state."""

    code_generator_class = BoundedCodeGenerator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: Budget, now: Callable[[], datetime]) -> None:
        self.budget = budget
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=self._charge_output,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self.filters = {name: DEFAULT_FILTERS[name] for name in FILTER_NAMES} | self._own_filters()
        self.globals = {name: DEFAULT_NAMESPACE[name] for name in GLOBAL_NAMES} | {
            "range": self.globals["range"],
            "raise_exception": raise_exception,
            "strftime_now": lambda form: now().strftime(form),
        }

    def _own_filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "tojson": self._tojson,
            "from_json": json.loads,
            "join": self._join,
            "replace": self._replace,
            "indent": self._indent,
            "format": lambda form, *args: self._percent(form, args),
            "list": self._list,
            "string": self._string,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Put a charged step in front of everything that can be run more than once."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.body.insert(0, nodes.ExprStmt(_step(loop.body), lineno=loop.lineno))
            if loop.test is not None:
                loop.test = nodes.And(_step([]), loop.test, lineno=loop.lineno)
        blocks: tuple[type[Any], ...] = (nodes.Macro, nodes.CallBlock, nodes.Block)
        for block in list(tree.find_all(blocks)):
            block.body.insert(0, nodes.ExprStmt(_step(block.body), lineno=block.lineno))
        tree.set_environment(self)
        return tree

    def _charge_output(self, value: Any) -> Any:
        self.budget.spend_value(value)
        return value

    def concat_bounded(self, parts: tuple[Any, ...]) -> str:
        """The operator `~`."""
        self.budget.spend_value(parts)
        return "".join(map(str, parts))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """What the template gets for the method `format` of a string; None for anything else."""
        owner = getattr(value, "__self__", None)
        if not isinstance(owner, str) or getattr(value, "__name__", "") != "format":
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            self.budget.spend(len(owner))
            return BoundedFormatter(self).vformat(owner, args, kwargs)

        return bounded

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in UNSAFE_STR_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call from the template, charging string methods that can grow their text."""
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "join":
            return self._join(args[0], owner)
        if isinstance(owner, str) and name == "replace":
            return self._replace(owner, *args)
        if isinstance(owner, str) and name in PADDING_METHODS:
            self.budget.spend(len(owner) * max([1, *(a for a in args if isinstance(a, int))]))
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            return self._percent(left, right)
        if operator == "+":
            self.budget.spend(_length(left) + _length(right))
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_INT_BITS:
                raise TemplateRuntimeError("a number in the chat template is too large")
        elif operator == "*":
            self.budget.spend(max(_length(left) * _count(right), _length(right) * _count(left)))
        return super().call_binop(context, operator, left, right)

    def _percent(self, form: str, values: Any) -> str:
        if WIDE_FORMAT.search(form):
            raise TemplateRuntimeError("a field width in the chat template is too large")
        self.budget.spend_value((form, values))
        return form % values

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Plain JSON as models were trained on: order kept, nothing escaped for HTML, ", " and ": " between."""
        if isinstance(value, Undefined):
            raise TemplateRuntimeError(f"tojson of an undefined value: {value._undefined_name}")
        if isinstance(indent, int) and indent > MAX_INDENT:
            raise TemplateRuntimeError("tojson: the indentation is too large")
        plain = _materialised(value)
        self.budget.spend_value(plain)
        return json.dumps(plain, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def _join(self, values: Iterable[Any], separator: str = "", attribute: str | int | None = None) -> str:
        if attribute is not None:
            values = [self.getitem(value, attribute) for value in values]
        texts = list(values)
        self.budget.spend_value(texts)
        self.budget.spend(len(separator) * len(texts))
        return separator.join(map(str, texts))

    def _replace(self, text: Any, old: str, new: str, count: int | None = None) -> str:
        text, old, new = str(text), str(old), str(new)
        limit = -1 if count is None else count
        self.budget.spend(len(text) + text.count(old) * len(new))
        return text.replace(old, new, limit)

    def _indent(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        if isinstance(width, int) and width > MAX_INDENT:
            raise TemplateRuntimeError("indent: the indentation is too large")
        margin = width if isinstance(width, str) else " " * width
        lines = str(text).split("\n")
        self.budget.spend(len(text) + len(margin) * len(lines))
        rest = [margin + line if line or blank else line for line in lines[1:]]
        return "\n".join([margin + lines[0] if first else lines[0], *rest])

    def _list(self, values: Iterable[Any]) -> list[Any]:
        result = list(values)
        self.budget.spend(len(result))
        return result

    def _string(self, value: Any) -> str:
        self.budget.spend_value(value)
        return str(value)


def _step(body: list[nodes.Node]) -> nodes.Expr:
    """The expression `environment.budget.step(characters of constant text in body)`."""
    n_chars = sum(len(data.data) for node in body for data in _texts(node))
    step = nodes.Getattr(nodes.EnvironmentAttribute("budget"), "step", "load")
    return nodes.Call(step, [nodes.Const(n_chars)], [], None, None)


def _texts(node: nodes.Node) -> Iterable[nodes.TemplateData]:
    return [node] if isinstance(node, nodes.TemplateData) else node.find_all(nodes.TemplateData)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _materialised(value: Any) -> Any:
    """Filters such as `map` give generators, which JSON does not know."""
    is_plain = value is None or isinstance(value, str | int | float | bool | list | tuple | dict)
    return value if is_plain or not isinstance(value, Iterable) else list(value)


def raise_exception(message: str) -> None:
    """The template's way to refuse a conversation."""
    raise RefusedByTemplateError(message)
