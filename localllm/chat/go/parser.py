"""A Go template's tokens as trees, one for each name; faults are told in Go's words. It knows nothing of values."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from localllm.chat.go import nodes
from localllm.chat.go.lexer import Token, tokens
from localllm.chat.go.nodes import Node
from localllm.chat.go.numbers import NumberError, number
from localllm.chat.go.quoting import QuotingError, quoted, unquoted
from localllm.errors import TemplateError

MAX_DEPTH = 100
OPERANDS = frozenset({"bool", "character", "dot", "field", "identifier", "number", "nil", "string", "variable"})
LITERALS = (nodes.Constant, nodes.Dot, nodes.Nil)

Trees = dict[str, list[Node]]


@dataclass
class _Ending:
    """What closes a list of nodes: "end" or "else" with the token after it."""

    kind: str
    following: str = ""

    def __str__(self) -> str:
        return f"{{{{{self.kind}}}}}"


def parse(source: str, functions: Container[str]) -> Trees:
    """The trees by name, the template itself under "". Raises: TemplateError."""
    return _Parser(source, functions).parse()


class _Parser:
    def __init__(self, source: str, functions: Container[str]) -> None:
        self._tokens = tokens(source)
        self._functions = functions
        self._ahead: list[Token] = []
        self._last_line = 1
        self._action_line = 0
        self._variables = ["$"]
        self._n_ranges = 0
        self._depth = 0
        self._trees: Trees = {}

    def parse(self) -> Trees:
        root, ending = self._nodes(is_root=True)
        if ending.kind != "eof":
            raise self._error(f"unexpected {ending}")
        self._add("", root)
        self._trees.setdefault("", root)
        return self._trees

    # Tokens

    def _peek(self, distance: int = 0) -> Token:
        while len(self._ahead) <= distance:
            token = next(self._tokens)
            self._last_line = token.line
            self._ahead.append(token)
        return self._ahead[distance]

    def _take(self) -> Token:
        token = self._peek()
        # what comes after the last token is the last token again
        if token.kind not in ("eof", "error"):
            self._ahead.pop(0)
        return token

    def _expect(self, kind: str, context: str) -> Token:
        token = self._take()
        if token.kind != kind:
            raise self._unexpected(token, context)
        return token

    def _error(self, text: str) -> TemplateError:
        return TemplateError(f"template: :{self._last_line}: {text}")

    def _unexpected(self, token: Token, context: str) -> TemplateError:
        if token.kind != "error":
            return self._error(f"unexpected {token} in {context}")
        where = ""
        if self._action_line not in (0, token.line):
            action = "" if token.text.endswith(" action") else " in action"
            where = f"{action} started at :{self._action_line}"
        return self._error(f"{token}{where}")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"nested too deeply (more than {MAX_DEPTH} levels)")

    # Lists and actions

    def _nodes(self, is_root: bool = False) -> tuple[list[Node], _Ending]:
        """Nodes up to an `end`, an `else` or, at the root, the end of the source."""
        self._deeper()
        result: list[Node] = []
        while True:
            token = self._take()
            if token.kind == "eof":
                if not is_root:
                    raise self._error("unexpected EOF")
                return self._left(result, _Ending("eof"))
            if token.kind == "text":
                result.append(nodes.Text(token.position, token.text))
            elif token.kind == "left":
                node = self._action(token, is_root)
                if isinstance(node, _Ending):
                    return self._left(result, node)
                if node is not None:
                    result.append(node)
            else:
                raise self._unexpected(token, "input")

    def _left(self, result: list[Node], ending: _Ending) -> tuple[list[Node], _Ending]:
        self._depth -= 1
        return result, ending

    def _action(self, opened: Token, is_root: bool) -> Node | _Ending | None:
        self._action_line = opened.line
        try:
            token = self._peek()
            if token.kind == "define" and is_root:
                self._take()
                self._define()
                return None
            controls: dict[str, Callable[[Token], Node | _Ending]] = {
                **dict.fromkeys(("if", "range", "with"), self._branch),
                **dict.fromkeys(("break", "continue"), self._leave_range),
                "else": self._else,
                "end": self._end,
                "block": self._block,
                "template": self._call,
            }
            if control := controls.get(token.kind):
                return control(self._take())
            return nodes.Action(token.position, self._pipe("command", "right"))
        finally:
            self._action_line = 0

    def _end(self, _: Token) -> _Ending:
        self._expect("right", "end")
        return _Ending("end")

    def _else(self, _: Token) -> _Ending:
        following = self._peek().kind
        if following in ("if", "with"):
            return _Ending("else", following)
        self._expect("right", "else")
        return _Ending("else")

    def _leave_range(self, word: Token) -> Node:
        self._expect_right_after(word.kind)
        if not self._n_ranges:
            raise self._error(f"{{{{{word.kind}}}}} outside {{{{range}}}}")
        return nodes.Break(word.position) if word.kind == "break" else nodes.Continue(word.position)

    def _expect_right_after(self, keyword: str) -> None:
        token = self._take()
        if token.kind != "right":
            raise self._unexpected(token, f"{{{{{keyword}}}}}")

    def _branch(self, keyword: Token) -> Node:
        n_variables = len(self._variables)
        pipe = self._pipe(keyword.kind, "right")
        is_range = keyword.kind == "range"
        self._n_ranges += is_range
        body, ending = self._nodes()
        self._n_ranges -= is_range
        otherwise = self._otherwise(keyword.kind, ending) if ending.kind == "else" else None
        del self._variables[n_variables:]
        return nodes.Branch(pipe.position, keyword.kind, pipe, body, otherwise)

    def _otherwise(self, keyword: str, ending: _Ending) -> list[Node]:
        if keyword != "range" and ending.following == keyword:
            self._deeper()
            branch = self._branch(self._take())
            self._depth -= 1
            return [branch]
        body, closing = self._nodes()
        if closing.kind != "end":
            raise self._error(f"expected end; found {closing}")
        return body

    def _define(self) -> None:
        name = self._name("define clause")
        self._expect("right", "define clause")
        self._add(name, self._separate("define clause"))

    def _block(self, _: Token) -> Node:
        start = self._peek()
        name = self._name("block clause")
        pipe = self._pipe("block clause", "right")
        self._add(name, self._separate("block clause"))
        return nodes.Call(start.position, name, pipe)

    def _separate(self, context: str) -> list[Node]:
        """The nodes of another template, which sees no variable of this one."""
        variables, self._variables = self._variables, ["$"]
        n_ranges, self._n_ranges = self._n_ranges, 0
        body, ending = self._nodes()
        if ending.kind != "end":
            raise self._error(f"unexpected {ending} in {context}")
        self._variables, self._n_ranges = variables, n_ranges
        return body

    def _call(self, _: Token) -> Node:
        start = self._peek()
        name = self._name("template clause")
        if self._peek().kind == "right":
            self._take()
            return nodes.Call(start.position, name, None)
        return nodes.Call(start.position, name, self._pipe("template clause", "right"))

    def _name(self, context: str) -> str:
        return self._unquoted(self._expect("string", context))

    def _add(self, name: str, tree: list[Node]) -> None:
        """A later template replaces one that holds nothing but blanks, and gives way where it is such itself."""
        if _is_empty(self._trees.get(name, [])):
            self._trees[name] = tree
        elif not _is_empty(tree):
            raise self._error(f"template: multiple definition of template {quoted(name)}")

    # Pipelines

    def _pipe(self, context: str, end: str) -> nodes.Pipe:
        pipe = nodes.Pipe(self._peek().position)
        while self._declare(pipe, context):
            pass
        while (token := self._peek()).kind != end:
            if token.kind not in OPERANDS and token.kind != "left paren":
                raise self._unexpected(token, context)
            pipe.commands.append(self._command())
        self._take()
        if not pipe.commands:
            raise self._error(f"missing value for {context}")
        for i, command in enumerate(pipe.commands[1:], 2):
            if isinstance(command.operands[0], LITERALS):
                raise self._error(f"non executable command in pipeline stage {i}")
        return pipe

    def _declare(self, pipe: nodes.Pipe, context: str) -> bool:
        """Take a variable that is declared or assigned; whether another may follow."""
        if self._peek().kind != "variable":
            return False
        sign = self._peek(1)
        is_comma = sign.kind == "char" and sign.text == ","
        if sign.kind not in ("assign", "declare") and not is_comma:
            return False
        name = self._take().text
        self._take()
        pipe.is_assignment = sign.kind == "assign"
        pipe.variables.append(name)
        self._variables.append(name)
        if is_comma:
            self._check_second_variable(pipe, context)
        return is_comma

    def _check_second_variable(self, pipe: nodes.Pipe, context: str) -> None:
        if context != "range" or len(pipe.variables) > 1:
            raise self._error(f"too many declarations in {context}")
        if self._peek().kind not in ("variable", "right", "right paren"):
            raise self._error("range can only initialize variables")

    def _command(self) -> nodes.Command:
        command = nodes.Command(self._peek().position)
        while True:
            if (operand := self._operand()) is not None:
                command.operands.append(operand)
            token = self._peek()
            if token.kind == "pipe":
                self._take()
                break
            if token.kind in ("right", "right paren"):
                break
            if operand is None or not token.is_apart:
                raise self._unexpected(self._take(), "operand")
        if not command.operands:
            raise self._error("empty command")
        return command

    def _operand(self) -> Node | None:
        node = self._term()
        if node is None or not self._continues_chain():
            return node
        start, names = self._peek().position, []
        while self._continues_chain():
            names.append(self._take().text[1:])
        if isinstance(node, nodes.Fields):
            return nodes.Fields(start, [*node.names, *names])
        if isinstance(node, nodes.Variable):
            return nodes.Variable(start, node.name, names)
        if isinstance(node, LITERALS):
            raise self._error(f"unexpected . after term {quoted(str(node))}")
        return nodes.Chain(start, node, names)

    def _continues_chain(self) -> bool:
        token = self._peek()
        return token.kind == "field" and not token.is_apart

    def _term(self) -> Node | None:
        token = self._peek()
        if token.kind == "left paren":
            return self._parenthesised()
        if token.kind not in OPERANDS:
            return None
        self._take()
        at, text = token.position, token.text
        if token.kind == "identifier":
            if text not in self._functions:
                raise self._error(f"function {quoted(text)} not defined")
            return nodes.Function(at, text)
        if token.kind == "variable":
            if text not in self._variables:
                raise self._error(f"undefined variable {quoted(text)}")
            return nodes.Variable(at, text, [])
        if token.kind in ("number", "character"):
            return nodes.Constant(at, text, self._number(text))
        if token.kind == "string":
            return nodes.Constant(at, text, self._unquoted(token))
        if token.kind == "bool":
            return nodes.Constant(at, text, text == "true")
        if token.kind == "field":
            return nodes.Fields(at, [text[1:]])
        return nodes.Dot(at) if token.kind == "dot" else nodes.Nil(at)

    def _parenthesised(self) -> Node:
        self._deeper()
        self._take()
        pipe = self._pipe("parenthesized pipeline", "right paren")
        self._depth -= 1
        return pipe

    def _number(self, text: str) -> int | float | complex:
        try:
            return number(text)
        except (QuotingError, NumberError) as error:
            raise self._error(str(error)) from None

    def _unquoted(self, token: Token) -> str:
        try:
            return unquoted(token.text)
        except QuotingError as error:
            raise self._error(str(error)) from None


def _is_empty(tree: list[Node]) -> bool:
    return all(isinstance(node, nodes.Text) and not node.text.strip() for node in tree)
