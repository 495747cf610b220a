"""Executes the trees of a Go template over a value; it knows nothing of messages.

Whatever can repeat or grow is charged to a Budget. Faults are told in Go's words, with the place in the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from localllm.chat.budget import Budget
from localllm.chat.go import nodes
from localllm.chat.go.formatting import show
from localllm.chat.go.functions import GoFunction
from localllm.chat.go.nodes import Node
from localllm.chat.go.numbers import MAX_INT
from localllm.chat.go.parser import Trees
from localllm.chat.go.quoting import quoted
from localllm.chat.go.values import (
    NIL,
    Alternatives,
    CallError,
    Record,
    TypedMap,
    element,
    in_bytes,
    is_true,
    kind,
    plain,
    type_name,
)
from localllm.errors import TemplateError

# Templates that call each other, one within the other.
MAX_CALLS = 50
NO_VALUE = "<no value>"

# No value comes down the pipeline.
_ABSENT: Final = object()
# How a list of nodes ended before its end.
_BREAK, _CONTINUE, _STOP = "break", "continue", "stop"


class ExecutionError(TemplateError):
    """The template cannot be executed over these values."""


class Execution:
    """One execution. `stops_at`: the field whose printing ends it, if any."""

    def __init__(
        self, source: str, trees: Trees, functions: dict[str, GoFunction], budget: Budget, stops_at: str | None = None
    ) -> None:
        self._source = source
        self._trees = trees
        self._functions = functions
        self._budget = budget
        self._stops_at = stops_at
        self._output: list[str] = []
        self._variables: list[tuple[str, Any]] = []
        self._template = ""
        self._n_calls = 0
        self._node: Node | None = None

    def run(self, root: Any) -> str:
        """The output. Raises: ExecutionError, LimitError."""
        self._variables = [("$", root)]
        try:
            self._walk(self._trees[""], root)
        except RecursionError as error:
            raise ExecutionError("the template is nested too deeply") from error
        text = "".join(self._output)
        return text if text.isascii() else in_bytes(text).decode("utf-8", "replace")

    def _error(self, text: str) -> ExecutionError:
        node = self._node
        assert node is not None
        before = self._source[: node.position]
        line, column = before.count("\n") + 1, len(in_bytes(before[before.rfind("\n") + 1 :]))
        return ExecutionError(f"template: :{line}:{column}: executing {quoted(self._template)} at <{node}>: {text}")

    # Nodes

    def _walk(self, body: list[Node], dot: Any) -> str | None:
        """Execute nodes; how they ended, if not at their end."""
        for node in body:
            self._node = node
            if isinstance(node, nodes.Text):
                self._write(node.text)
            elif (ending := self._walk_node(node, dot)) is not None:
                return ending
        return None

    def _walk_node(self, node: Node, dot: Any) -> str | None:
        if isinstance(node, nodes.Action):
            value = self._pipe(node.pipe, dot)
            if not node.pipe.variables:
                self._write(NO_VALUE if plain(value) is None else show(value))
            return _STOP if self._stops_at and self._prints(node, self._stops_at) else None
        if isinstance(node, nodes.Branch):
            return self._range(node, dot) if node.keyword == "range" else self._condition(node, dot)
        if isinstance(node, nodes.Call):
            return self._call_template(node, dot)
        return _BREAK if isinstance(node, nodes.Break) else _CONTINUE

    def _write(self, text: str) -> None:
        self._budget.spend(len(text))
        self._output.append(text)

    def _prints(self, node: nodes.Action, field: str) -> bool:
        return any(isinstance(inner, nodes.Fields) and field in inner.names for inner in nodes.walk([node]))

    def _condition(self, node: nodes.Branch, dot: Any) -> str | None:
        mark = len(self._variables)
        value = self._pipe(node.pipe, dot)
        ending = None
        if is_true(plain(value)):
            ending = self._walk(node.body, value if node.keyword == "with" else dot)
        elif node.otherwise is not None:
            ending = self._walk(node.otherwise, dot)
        del self._variables[mark:]
        return ending

    def _range(self, node: nodes.Branch, dot: Any) -> str | None:
        mark = len(self._variables)
        value = plain(self._pipe(node.pipe, dot))
        inner, ending, is_empty = len(self._variables), None, True
        for key, item in self._items(node, value):
            is_empty = False
            self._budget.step()
            self._set_range_variables(node.pipe, key, item)
            ending = self._walk(node.body, item)
            del self._variables[inner:]
            if ending in (_BREAK, _STOP):
                break
        if is_empty and node.otherwise is not None:
            ending = self._walk(node.otherwise, dot)
            del self._variables[mark:]
            return ending
        del self._variables[mark:]
        return ending if ending == _STOP else None

    def _items(self, node: nodes.Branch, value: Any) -> Iterator[tuple[Any, Any]]:
        if value is None:
            return iter(())
        if isinstance(value, list):
            return ((i, element(item)) for i, item in enumerate(value))
        if isinstance(value, dict):
            return ((key, element(value[key])) for key in sorted(value))
        if kind(value) != "int":
            raise self._error(f"range can't iterate over {show(value)}")
        if len(node.pipe.variables) > 1:
            raise self._error(f"can't use {show(value)} to iterate over more than one variable")
        return ((None, i) for i in range(value))

    def _set_range_variables(self, pipe: nodes.Pipe, key: Any, item: Any) -> None:
        names = pipe.variables
        values = [key, item] if len(names) > 1 else [item]
        for distance, (name, value) in enumerate(zip(names[::-1], values[::-1], strict=False), 1):
            if pipe.is_assignment:
                self._assign(name, value)
            else:
                self._variables[-distance] = (name, value)

    def _call_template(self, node: nodes.Call, dot: Any) -> str | None:
        tree = self._trees.get(node.name)
        if tree is None:
            raise self._error(f"template {quoted(node.name)} not defined")
        self._n_calls += 1
        if self._n_calls > MAX_CALLS:
            raise self._error(f"exceeded maximum template depth ({MAX_CALLS})")
        self._budget.step()
        value = self._pipe(node.pipe, dot) if node.pipe else None
        kept = self._variables, self._template
        self._variables, self._template = [("$", value)], node.name
        ending = self._walk(tree, value)
        self._variables, self._template = kept
        self._n_calls -= 1
        return ending

    # Pipelines

    def _pipe(self, pipe: nodes.Pipe, dot: Any) -> Any:
        """The value of the last command, which the pipeline's variables are given."""
        self._node = pipe
        value: Any = _ABSENT
        for command in pipe.commands:
            value = plain(self._command(command, dot, value))
        for name in pipe.variables:
            if pipe.is_assignment:
                self._assign(name, value)
            else:
                self._variables.append((name, value))
        return value

    def _assign(self, name: str, value: Any) -> None:
        for i in range(len(self._variables) - 1, -1, -1):
            if self._variables[i][0] == name:
                self._variables[i] = (name, value)
                return
        raise self._error(f"undefined variable: {name}")

    def _variable(self, name: str) -> Any:
        for known, value in reversed(self._variables):
            if known == name:
                return value
        raise self._error(f"undefined variable: {name}")

    def _command(self, command: nodes.Command, dot: Any, piped: Any) -> Any:
        first, *rest = command.operands
        if isinstance(first, nodes.Function):
            return self._call(first, command, dot, rest, piped)
        has_arguments = bool(rest) or piped is not _ABSENT
        names = nodes.names_of(first)
        if has_arguments and not names:
            self._node = first
            raise self._error(f"can't give argument to non-function {first}")
        if isinstance(first, nodes.Nil):
            self._node = first
            raise self._error("nil is not a command")
        return self._operand(first, dot, has_arguments)

    def _operand(self, node: Node, dot: Any, has_arguments: bool = False) -> Any:
        """The value of an operand; `has_arguments`: it stands where a function would."""
        self._node = node
        if isinstance(node, nodes.Dot):
            return dot
        if isinstance(node, nodes.Constant):
            return self._constant(node)
        if isinstance(node, nodes.Pipe):
            return self._pipe(node, dot)
        if isinstance(node, nodes.Fields):
            return self._fields(dot, node.names, has_arguments)
        if isinstance(node, nodes.Variable):
            return self._fields(self._variable(node.name), node.names, has_arguments)
        if isinstance(node, nodes.Function):
            return self._call(node, node, dot, [], _ABSENT)
        if isinstance(node, nodes.Chain):
            if isinstance(node.of, nodes.Nil):
                raise self._error(f"indirection through explicit nil in {node}")
            value = self._operand(node.of, dot)
            return self._fields(value, node.names, has_arguments)
        return None  # the constant nil

    def _constant(self, node: nodes.Constant) -> Any:
        if isinstance(node.value, int) and node.value > MAX_INT:
            raise self._error(f"{node.source} overflows int")
        return node.value

    def _fields(self, value: Any, names: list[str], has_arguments: bool) -> Any:
        is_untyped = False
        for i, name in enumerate(names):
            inner = self._field(value, name, has_arguments and i == len(names) - 1, is_untyped)
            is_untyped = isinstance(value, dict) and not isinstance(value, TypedMap)
            value = inner
        return value

    def _field(self, receiver: Any, name: str, has_arguments: bool, is_untyped: bool) -> Any:
        """A field or method of a value; `is_untyped`: it came out of a map of anything."""
        if receiver is None:
            return None
        if receiver is NIL:
            raise self._error(f"nil pointer evaluating interface {{}}.{name}")
        if (method := _method(receiver, name)) is not None:
            if has_arguments:
                raise self._error(f"wrong number of args for {name}: want 0 got 1")
            return method
        if isinstance(receiver, Record) and name in receiver.values:
            if has_arguments:
                raise self._error(f"{name} has arguments but cannot be invoked as function")
            return element(receiver.values[name])
        if isinstance(receiver, dict):
            if has_arguments:
                raise self._error(f"{name} is not a method but has arguments")
            missing = receiver.missing() if isinstance(receiver, TypedMap) and name not in receiver else None
            return element(receiver.get(name, missing))
        static_type = "interface {}" if is_untyped else type_name(receiver)
        raise self._error(f"can't evaluate field {name} in type {static_type}")

    # Calls

    def _call(self, named: nodes.Function, at: Node, dot: Any, operands: list[Node], piped: Any) -> Any:
        self._node = named
        name, function = named.name, self._functions[named.name]
        self._check_count(name, function, len(operands), piped)
        if name in ("and", "or"):
            return self._short_circuit(name, dot, operands, piped)
        arguments = [self._argument(operand, dot, function.wants_string(i)) for i, operand in enumerate(operands)]
        if piped is not _ABSENT:
            arguments.append(self._checked(piped, function.wants_string(len(arguments))))
        if name == "call":  # which tells the name of what it was given
            arguments = [str(operands[0]) if operands else show(piped), *arguments]
        try:
            result = function.call(*arguments)
        except CallError as error:
            self._node = at
            raise self._error(f"error calling {name}: {error}") from None
        if isinstance(result, str):
            self._budget.spend(len(result))
        return result

    def _check_count(self, name: str, function: GoFunction, n_operands: int, piped: Any) -> None:
        n_given = n_operands + (piped is not _ABSENT)
        if function.n_most is not None and n_given != function.n_most:
            raise self._error(f"wrong number of args for {name}: want {function.n_most} got {n_given}")
        if n_given < function.n_least:
            raise self._error(f"wrong number of args for {name}: want at least {function.n_least} got {n_operands}")

    def _short_circuit(self, name: str, dot: Any, operands: list[Node], piped: Any) -> Any:
        """The first operand that decides, else the last; what comes after it is not evaluated."""
        value: Any = None
        for operand in operands:
            value = self._operand(operand, dot)
            if is_true(plain(value)) == (name == "or"):
                return value
        return value if piped is _ABSENT else piped

    def _argument(self, node: Node, dot: Any, is_string: bool) -> Any:
        if is_string and isinstance(node, nodes.Constant) and not isinstance(node.value, str):
            self._node = node
            raise self._error(f"expected string; found {node}")
        if is_string and isinstance(node, nodes.Nil):
            self._node = node
            raise self._error("cannot assign nil to string")
        return self._checked(self._operand(node, dot), is_string)

    def _checked(self, value: Any, is_string: bool) -> Any:
        if is_string and not isinstance(plain(value), str):
            if value is None:
                raise self._error("invalid value; expected string")
            raise self._error(f"wrong type for value; expected string; got {type_name(value)}")
        return value


def _method(value: Any, name: str) -> Any:
    """The result of a method without arguments, None where the value has none of that name."""
    if name == "String" and isinstance(value, Alternatives):
        return str(value)
    if isinstance(value, Record) and name in value.methods:
        return value.methods[name]()
    return None
