"""Go's Print, Println and Printf of template values; it knows nothing of templates.

Verbs: v d s q t f F e E g G x X o O b c U T p %, with the flags `+-# 0`, widths and precisions (also `*`) and
argument numbers such as `%[2]d`. Wrong use prints what Go prints, such as `%!d(string=x)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from localllm.chat.go.floats import formatted_float, shortest
from localllm.chat.go.json_text import go_json
from localllm.chat.go.quoting import quoted
from localllm.chat.go.values import (
    Alternatives,
    CallError,
    Record,
    TypedList,
    TypedMap,
    in_bytes,
    kind,
    plain,
    type_name,
)

# Widths and precisions beyond this are refused, as in Go.
MAX_WIDTH = 1_000_000
# The longest text that one call makes.
MAX_CHARS = 16 * 1024 * 1024

_DIRECTIVE = re.compile(
    r"%([+\-# 0]*)(?:(\[\d+\])?(\*)|(\d+))?(?:(\.)(?:(\[\d+\])?(\*)|(\d+))?)?(\[\d+\])?(.)?", re.DOTALL
)
_BASES = {"b": "b", "o": "o", "O": "o", "x": "x", "X": "X", "d": "d"}


@dataclass(frozen=True)
class Form:
    """A directive: its verb with flags, width and precision (None where not given)."""

    verb: str
    flags: str = ""
    width: int | None = None
    precision: int | None = None

    def padded(self, text: str, zeros: bool = False) -> str:
        if self.width is None:
            return text
        if "-" in self.flags:
            return text.ljust(self.width)
        if zeros and "0" in self.flags:
            sign = text[:1] if text[:1] in ("+", "-", " ") else ""
            return sign + text[len(sign) :].rjust(self.width - len(sign), "0")
        return text.rjust(self.width)


def sprint(values: list[Any]) -> str:
    """Values one after another, a blank between two of which neither is a string. Raises: CallError."""
    return _bounded(_spaced(values))


def _spaced(values: list[Any]) -> Iterator[str]:
    for i, value in enumerate(values):
        if i and not isinstance(value, str) and not isinstance(values[i - 1], str):
            yield " "
        yield show(value)


def sprintln(values: list[Any]) -> str:
    """Values with blanks between, then a new line. Raises: CallError."""
    return _bounded(part for i, value in enumerate(values) for part in (" " if i else "", show(value))) + "\n"


def sprintf(form: str, values: list[Any]) -> str:
    """Raises: CallError."""
    return _bounded(_Printf(values).parts(form))


def _bounded(parts: Iterator[str]) -> str:
    """The parts joined; their sum is watched while they are made, since few words of a template may ask for much."""
    texts, n_chars = [], 0
    for part in parts:
        n_chars += len(part)
        if n_chars > MAX_CHARS:
            raise CallError(f"the text has more than {MAX_CHARS} characters")
        texts.append(part)
    return "".join(texts)


def show(value: Any) -> str:
    """The text of one value as `%v`."""
    return _formatted(Form("v"), value)


class _Printf:
    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self._next = 0
        self._is_reordered = False
        self._has_bad_index = False

    def parts(self, form: str) -> Iterator[str]:
        at = 0
        for match in _DIRECTIVE.finditer(form):
            yield form[at : match.start()]
            yield self._directive(match)
            at = match.end()
        yield form[at:]
        if not self._is_reordered and self._next < len(self._values):
            yield f"%!(EXTRA {', '.join(map(_with_type, self._values[self._next :]))})"

    def _directive(self, match: re.Match[str]) -> str:
        flags, width_index, width_star, width, dot, precision_index, precision_star, precision, index, verb = (
            match.groups()
        )
        self._has_bad_index = False
        prefix = ""
        self._jump(width_index)
        n_width = self._starred(width_star, width)
        if width_star and n_width is None:
            prefix = "%!(BADWIDTH)"
        if n_width is not None and n_width < 0:
            flags, n_width = flags + "-", -n_width
        self._jump(precision_index)
        n_precision = self._starred(precision_star, precision or "0") if dot else None
        if precision_star and (n_precision is None or n_precision < 0):
            prefix, n_precision = prefix + "%!(BADPREC)", None
        self._jump(index)
        if verb is None:
            return prefix + "%!(NOVERB)"
        if verb == "%":
            return prefix + "%"
        if self._has_bad_index:
            return f"{prefix}%!{verb}(BADINDEX)"
        if self._next >= len(self._values):
            return f"{prefix}%!{verb}(MISSING)"
        value = self._values[self._next]
        self._next += 1
        return prefix + _formatted(Form(verb, flags, n_width, n_precision), value)

    def _jump(self, index: str | None) -> None:
        if index is None:
            return
        self._is_reordered = True
        number = int(index[1:-1])
        self._has_bad_index = not 1 <= number <= len(self._values)
        self._next = self._next if self._has_bad_index else number - 1

    def _starred(self, star: str | None, digits: str | None) -> int | None:
        """A width or precision, from the arguments where it is `*`; None where it is none that Go takes."""
        if star:
            value = self._values[self._next] if self._next < len(self._values) else None
            self._next += 1
            is_number = isinstance(value, int) and not isinstance(value, bool)
            return value if is_number and abs(value or 0) <= MAX_WIDTH else None
        return min(int(digits), MAX_WIDTH) if digits else None


def _formatted(form: Form, value: Any) -> str:
    value = plain(value)
    if form.verb == "v" and "+" in form.flags and kind(value) in ("int", "float", "complex", "string"):
        form = replace(form, flags=form.flags.replace("+", ""))  # there it asks for the names of fields
    if form.verb == "T":
        return form.padded("<nil>" if value is None else type_name(value))
    if value is None:
        return form.padded("<nil>") if form.verb == "v" else "%!" + form.verb + "(<nil>)"
    if form.verb in "vsqxX" and "#" not in form.flags and (text := _own_text(value)) is not None:
        return _string(form, text)
    return _FORMATTERS[kind(value)](form, value)


def _own_text(value: Any) -> str | None:
    """The text of values that know one."""
    if isinstance(value, Alternatives):
        return str(value)
    is_json = isinstance(value, TypedMap) or (isinstance(value, TypedList | Record) and value.is_json)
    return go_json(value) if is_json else None


def _wrong(form: Form, value: Any) -> str:
    return f"%!{form.verb}({_with_type(value)})"


def _with_type(value: Any) -> str:
    return "<nil>" if plain(value) is None else f"{type_name(value)}={show(value)}"


def _bool(form: Form, value: bool) -> str:
    return form.padded("true" if value else "false") if form.verb in "vt" else _wrong(form, value)


def _int(form: Form, value: int) -> str:
    if form.verb == "v":
        form = replace(form, verb="d")
    if form.verb in _BASES:
        return form.padded(_digits(form, value), zeros=form.precision is None)
    if form.verb == "c":
        return form.padded(_char(value))
    if form.verb == "q":
        return form.padded(quoted(_char(value), "'", ascii_only="+" in form.flags))
    if form.verb == "U":
        name = f"U+{value:04X}"
        return form.padded(f"{name} '{_char(value)}'" if "#" in form.flags and _char(value).isprintable() else name)
    return _wrong(form, value)


def _digits(form: Form, value: int) -> str:
    digits = format(abs(value), _BASES[form.verb])
    if form.precision is not None:
        digits = "" if form.precision == 0 and value == 0 else digits.rjust(form.precision, "0")
    prefix = {"x": "0x", "X": "0X", "o": "0", "b": "0b"}.get(form.verb, "") if "#" in form.flags else ""
    return _sign(form, value < 0) + ("0o" if form.verb == "O" else prefix) + digits


def _sign(form: Form, is_negative: bool) -> str:
    return "-" if is_negative else "+" if "+" in form.flags else " " if " " in form.flags else ""


def _char(code: int) -> str:
    return chr(code) if 0 <= code < 0xD800 or 0xE000 <= code < 0x110000 else "\ufffd"


def _float(form: Form, value: float) -> str:
    if form.verb not in "vfFeEgG":
        return _wrong(form, value)
    text = shortest(value) if form.verb == "v" and form.precision is None else None
    text = text or formatted_float(value, form.verb.replace("v", "g"), form.precision)
    sign = _sign(form, False) if text[0] not in "+-" else ""
    if text.startswith("+") and "+" not in form.flags:  # infinity keeps its sign
        return form.padded(text)
    return form.padded(sign + text, zeros="Inf" not in text and text != "NaN")


def _complex(form: Form, value: complex) -> str:
    part = replace(form, width=None)
    imaginary = _float(replace(part, flags=part.flags + "+"), value.imag)
    return form.padded(f"({_float(part, value.real)}{imaginary}i)")


def _string(form: Form, text: str) -> str:
    if form.verb in "vs":
        if form.verb == "v" and "#" in form.flags:
            return form.padded(quoted(text))
        return form.padded(text if form.precision is None else text[: form.precision])
    if form.verb == "q":
        shown = text if form.precision is None else text[: form.precision]
        if "#" in form.flags and "`" not in shown and (shown.isprintable() or "\t" in shown):
            return form.padded(f"`{shown}`")
        return form.padded(quoted(shown, ascii_only="+" in form.flags))
    if form.verb in "xX":
        data = in_bytes(text)[: form.precision]
        digits = data.hex(" ") if " " in form.flags else data.hex()
        digits = digits.upper() if form.verb == "X" else digits
        return form.padded(f"0{form.verb}{digits}" if "#" in form.flags and digits else digits)
    return _wrong(form, text)


def _list(form: Form, values: list[Any]) -> str:
    if form.verb == "v" and "#" in form.flags:
        return f"{type_name(values)}{{{', '.join(_formatted(form, item) for item in values)}}}"
    return f"[{' '.join(_inside(form, item) for item in values)}]"


def _map(form: Form, values: dict[str, Any]) -> str:
    if form.verb == "v" and "#" in form.flags:
        items = ", ".join(f"{quoted(key)}:{_formatted(form, values[key])}" for key in sorted(values))
        return f"{type_name(values)}{{{items}}}"
    return f"map[{' '.join(f'{_inside(form, key)}:{_inside(form, values[key])}' for key in sorted(values))}]"


def _record(form: Form, record: Record) -> str:
    if "+" in form.flags or "#" in form.flags:
        return "{" + " ".join(f"{name}:{_inside(form, value)}" for name, value in record.values.items()) + "}"
    return "{" + " ".join(_inside(form, value) for value in record.values.values()) + "}"


def _inside(form: Form, value: Any) -> str:
    return "<nil>" if plain(value) is None else _formatted(form, value)


_FORMATTERS: dict[str, Callable[[Form, Any], str]] = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "complex": _complex,
    "string": _string,
    "slice": _list,
    "map": _map,
    "struct": _record,
}
