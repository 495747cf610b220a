"""The tree of a Go template; it knows nothing of how one is parsed or executed.

A node's `str` is its source in Go's normal form, which error messages show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from localllm.chat.go.quoting import quoted


@dataclass(slots=True, eq=False)
class Node:
    """`position` counts characters from the start of the source."""

    position: int


@dataclass(slots=True, eq=False)
class Text(Node):
    text: str


@dataclass(slots=True, eq=False)
class Constant(Node):
    """A number, string or bool, as written in `source`."""

    source: str
    value: Any

    def __str__(self) -> str:
        return self.source


@dataclass(slots=True, eq=False)
class Dot(Node):
    def __str__(self) -> str:
        return "."


@dataclass(slots=True, eq=False)
class Nil(Node):
    def __str__(self) -> str:
        return "nil"


@dataclass(slots=True, eq=False)
class Function(Node):
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class Fields(Node):
    """`.A.B` of the dot."""

    names: list[str]

    def __str__(self) -> str:
        return "".join(f".{name}" for name in self.names)


@dataclass(slots=True, eq=False)
class Variable(Node):
    """`$name.A.B`; the name includes its `$`."""

    name: str
    names: list[str]

    def __str__(self) -> str:
        return ".".join([self.name, *self.names])


@dataclass(slots=True, eq=False)
class Chain(Node):
    """`.A.B` of a function's or a parenthesised pipeline's value."""

    of: Node
    names: list[str]

    def __str__(self) -> str:
        inner = f"({self.of})" if isinstance(self.of, Pipe) else str(self.of)
        return inner + "".join(f".{name}" for name in self.names)


@dataclass(slots=True, eq=False)
class Command(Node):
    """Operands; the first may be what is called with the others."""

    operands: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join(f"({o})" if isinstance(o, Pipe) else str(o) for o in self.operands)


@dataclass(slots=True, eq=False)
class Pipe(Node):
    """Commands, each given the value of the one before; variables that are declared or assigned with the result."""

    variables: list[str] = field(default_factory=list)
    is_assignment: bool = False
    commands: list[Command] = field(default_factory=list)

    def __str__(self) -> str:
        sign = " = " if self.is_assignment else " := "
        target = ", ".join(self.variables) + sign if self.variables else ""
        return target + " | ".join(map(str, self.commands))


@dataclass(slots=True, eq=False)
class Action(Node):
    pipe: Pipe


@dataclass(slots=True, eq=False)
class Break(Node):
    pass


@dataclass(slots=True, eq=False)
class Continue(Node):
    pass


@dataclass(slots=True, eq=False)
class Branch(Node):
    """`if`, `with` or `range` (the `keyword`); `otherwise` is None where there is no else."""

    keyword: str
    pipe: Pipe
    body: list[Node]
    otherwise: list[Node] | None


@dataclass(slots=True, eq=False)
class Call(Node):
    """`{{ template "name" pipe }}`."""

    name: str
    pipe: Pipe | None

    def __str__(self) -> str:
        return f"{{{{template {quoted(self.name)}{f' {self.pipe}' if self.pipe else ''}}}}}"


def children(node: Node) -> Iterator[Node]:
    """What a node encloses, in the order of the source."""
    if isinstance(node, Action | Call):
        yield from [node.pipe] if node.pipe else []
    elif isinstance(node, Branch):
        yield from (node.pipe, *node.body, *(node.otherwise or []))
    elif isinstance(node, Pipe):
        yield from node.commands
    elif isinstance(node, Command):
        yield from node.operands
    elif isinstance(node, Chain):
        yield node.of


def walk(nodes: list[Node]) -> Iterator[Node]:
    """Every node in and below `nodes`, in the order of the source."""
    for node in nodes:
        yield node
        yield from walk(list(children(node)))


def names_of(node: Node) -> list[str]:
    """The fields that a node itself reads: `A`, `B` for `.A.B`."""
    return node.names if isinstance(node, Fields | Variable | Chain) else []
