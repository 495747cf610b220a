"""What is wrong with a constraint; each is the fault of who wrote it, and its text says where."""

from __future__ import annotations

from localllm.errors import RequestError


class ConstraintError(RequestError):
    """A grammar, schema or pattern that cannot be used (status 400): malformed, too large, or matching nothing."""


class GrammarError(ConstraintError):
    """A grammar is malformed. `line` and `column` count from 1; 0 where no place is to blame."""

    def __init__(self, message: str, *, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class LeftRecursionError(GrammarError):
    """A rule begins with itself. `rules` are the names on the way, the first one again at the end."""

    def __init__(self, message: str, rules: tuple[str, ...], *, line: int = 0, column: int = 0) -> None:
        super().__init__(message, line=line, column=column)
        self.rules = rules


class PatternError(ConstraintError):
    """A regular expression is malformed or uses what cannot be enforced. `position` counts characters from 0."""

    def __init__(self, message: str, *, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class SchemaError(ConstraintError):
    """A JSON Schema is malformed, or matches nothing. `path` is a JSON pointer to the place (`#/properties/a`)."""

    def __init__(self, message: str, *, path: str = "#") -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class UnsupportedSchemaError(SchemaError):
    """A valid schema with what cannot be enforced. `keyword` is what it is about."""

    def __init__(self, message: str, *, path: str, keyword: str) -> None:
        super().__init__(message, path=path)
        self.keyword = keyword


class UnsatisfiableSchemaError(SchemaError):
    """No value is valid."""


class TooComplexError(ConstraintError):
    """A constraint needs more states, rules or time than the limits allow."""
