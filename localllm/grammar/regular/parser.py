"""Reads regular expressions as ECMA-262 has them, with its Annex B where a text has no meaning without it.

Characters are code points, as with the flag `u`; there are no other flags. Besides ECMA-262's syntax the spellings
`(?P<name>…)`, `\\A` and `\\Z` are read, which other dialects have and which mean nothing else in it. What an automaton
cannot decide, or not without doubt, is refused by name: back-references, inline flags, escapes of some dialects.
"""

from __future__ import annotations

from localllm.grammar.errors import PatternError
from localllm.grammar.regular import charsets, properties
from localllm.grammar.regular.charsets import Charset
from localllm.grammar.regular.simplify import repeated
from localllm.grammar.regular.syntax import Alt, Anchor, Cat, Look, Node, Set

MAX_DEPTH = 50
MAX_LENGTH = 20_000
# What no count in a pattern may exceed; ECMA-262 has no bound.
MAX_COUNT = 1_000_000_000

_CLASSES = {
    "d": properties.DIGITS,
    "w": properties.WORD,
    "s": properties.BLANKS,
    "D": charsets.complement(properties.DIGITS),
    "W": charsets.complement(properties.WORD),
    "S": charsets.complement(properties.BLANKS),
}
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_NOT_LINE_END = Set(charsets.complement(properties.LINE_ENDS))
_LOOKS = ("=", "!", "<=", "<!")
_HEX = frozenset("0123456789abcdefABCDEF")


def parse(pattern: str) -> Node:
    """The tree of a pattern.

    Raises: PatternError.
    """
    if len(pattern) > MAX_LENGTH:
        raise PatternError(f"a pattern of {len(pattern)} characters (at most {MAX_LENGTH})")
    return _Parser(pattern).whole()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.depth = 0
        # As ECMA-262 has it, \k is a back-reference only where a group has a name.
        self.has_names = "(?<" in pattern.replace("(?<=", "").replace("(?<!", "")
        self.n_groups = _count_groups(pattern)

    def whole(self) -> Node:
        node = self.alternation()
        if self.at < len(self.text):
            raise self.error('")" without a "("')
        return node

    def error(self, message: str, at: int | None = None) -> PatternError:
        position = self.at if at is None else at
        return PatternError(f'pattern "{_shown(self.text)}": {message} at character {position}', position=position)

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.at += len(text)
        return True

    # Structure

    def alternation(self) -> Node:
        branches = [self.branch()]
        while self.take("|"):
            branches.append(self.branch())
        return branches[0] if len(branches) == 1 else Alt(tuple(branches))

    def branch(self) -> Node:
        items: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            items.append(self.term())
        return items[0] if len(items) == 1 else Cat(tuple(items))

    def term(self) -> Node:
        begin = self.at
        item = self.atom()
        counts = self.quantifier()
        if counts is None:
            return item
        is_place = isinstance(item, Anchor) and self.text[begin] != "("
        if is_place or self.text.startswith(("(?<=", "(?<!"), begin):
            raise self.error("nothing to repeat", begin)
        again = self.at
        if self.quantifier() is not None:
            raise self.error("a quantifier after a quantifier", again)
        return repeated(item, *counts)

    def quantifier(self) -> tuple[int, int | None] | None:
        begin = self.at
        if self.at == len(self.text):
            return None
        c = self.text[self.at]
        counts: tuple[int, int | None] | None
        if c in "*+?":
            self.at += 1
            counts = {"*": (0, None), "+": (1, None), "?": (0, 1)}[c]
        elif c == "{":
            counts = self.braces()
        else:
            return None
        if counts is None:
            return None
        least, most = counts
        if most is not None and least > most:
            raise self.error("a quantifier whose bounds are out of order", begin)
        if self.peek("+") and self.text[begin] != "{":
            raise self.error("a possessive quantifier, which is not supported,", begin)
        self.take("?")
        return counts

    def braces(self) -> tuple[int, int | None] | None:
        """The bounds of `{n}`, `{n,}` or `{n,m}`; None, and nothing taken, where a brace is only a brace."""
        end = self.text.find("}", self.at)
        parts = self.text[self.at + 1 : end].split(",") if end > 0 else []
        if not 1 <= len(parts) <= 2 or not all(part.isascii() and (part.isdigit() or not part) for part in parts):
            return None
        if not parts[0]:
            if len(parts) == 2 and parts[1]:  # `{,n}` is text here, and a count in other dialects
                raise self.error('"{,n}", which dialects read differently,')
            return None
        if any(len(part) > 10 or int(part or 0) > MAX_COUNT for part in parts):
            raise self.error(f"a quantifier beyond {MAX_COUNT}")
        self.at = end + 1
        least = int(parts[0])
        if len(parts) == 1:
            return least, least
        return least, int(parts[1]) if parts[1] else None

    def atom(self) -> Node:
        c = self.text[self.at]
        if c == "(":
            return self.group()
        if c == "[":
            return Set(self.bracket())
        if c == "\\":
            return self.escape()
        if c in "*+?":
            raise self.error("nothing to repeat")
        if c == "{" and self.braces() is not None:
            raise self.error("nothing to repeat")
        self.at += 1
        if c == ".":
            return _NOT_LINE_END
        if c == "^":
            return Anchor("start")
        if c == "$":
            return Anchor("end")
        return Set(charsets.of_characters(c))

    def group(self) -> Node:
        begin = self.at
        self.at += 1
        look = ""
        if self.take("?"):
            look = next((kind for kind in _LOOKS if self.take(kind)), "")
            if look:
                pass
            elif self.take("P<") or self.take("<"):
                self.name(begin)
            elif not self.take(":"):
                raise self.error(f'the group "{self.text[begin : begin + 3]}…", which is not supported,', begin)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"groups more than {MAX_DEPTH} deep", begin)
        item = self.alternation()
        self.depth -= 1
        if not self.take(")"):
            raise self.error('"(" without a ")"', begin)
        return Look(item, "!" in look, "<" in look, begin) if look else item

    def name(self, begin: int) -> None:
        end = self.text.find(">", self.at)
        if end < 0 or not self.text[self.at : end].replace("$", "_").isidentifier():
            raise self.error("a group whose name is malformed", begin)
        self.at = end + 1

    # Escapes

    def escape(self) -> Node:
        begin = self.at
        c = self.text[self.at + 1 : self.at + 2]
        if c in ("b", "B"):
            self.at += 2
            return Anchor("boundary" if c == "b" else "inside")
        if c in ("A", "Z", "z"):
            self.at += 2
            return Anchor("start" if c == "A" else "end")
        if (c and c in "123456789") or (c == "k" and self.has_names):
            number = self.digits(begin + 1)
            if c == "k" or number <= self.n_groups:
                raise self.error("a back-reference, which is not supported,", begin)
        if c in ("G", "K", "R", "X", "h", "H", "N", "Q", "E"):
            raise self.error(f'the escape "\\{c}", which dialects read differently,', begin)
        return Set(self.set_escape())

    def digits(self, at: int) -> int:
        end = at
        while end < len(self.text) and self.text[end] in "0123456789":
            end += 1
        return int(self.text[at : min(end, at + 9)] or 0)

    def set_escape(self) -> Charset:
        """An escape that stands for one letter or a set, in and outside of brackets."""
        begin = self.at
        self.at += 1
        if self.at == len(self.text):
            raise self.error('a "\\" at the end', begin)
        c = self.text[self.at]
        if c in _CLASSES:
            self.at += 1
            return _CLASSES[c]
        if c in "pP":
            return self.property(begin)
        return _one(self.character_escape(begin))

    def character_escape(self, begin: int) -> int:
        """The code point that an escape stands for, whose backslash is taken."""
        c = self.text[self.at]
        self.at += 1
        if c in _CONTROLS:
            return _CONTROLS[c]
        if c == "c":
            following = self.text[self.at : self.at + 1]
            if following.isascii() and following.isalpha():
                self.at += 1
                return ord(following) % 32
            raise self.error("an escape \\c without a letter", begin)
        if c in "01234567":
            if c == "0" and not self.text[self.at : self.at + 1].isdigit():
                return 0
            raise self.error("an octal escape, which is not supported,", begin)
        if c in "89":
            raise self.error(f'the escape "\\{c}", which dialects read differently,', begin)
        if c == "x":
            return self.hex(2, begin)
        if c == "u":
            return self.unicode(begin)
        if c.isascii() and c.isalnum():
            raise self.error(f'the escape "\\{c}", which dialects read differently,', begin)
        return ord(c)

    def hex(self, n_digits: int, begin: int) -> int:
        digits = self.text[self.at : self.at + n_digits]
        if len(digits) < n_digits or not _HEX.issuperset(digits):
            raise self.error(f"an escape without its {n_digits} hexadecimal digits", begin)
        self.at += n_digits
        return int(digits, 16)

    def unicode(self, begin: int) -> int:
        if self.take("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : end]
            if end < 0 or not digits or not _HEX.issuperset(digits) or int(digits, 16) > 0x10FFFF:
                raise self.error("an escape \\u{…} without a code point", begin)
            self.at = end + 1
            return int(digits, 16)
        code = self.hex(4, begin)
        if 0xD800 <= code < 0xDC00 and self.peek("\\u"):
            after = self.at
            self.at += 2
            low = self.hex(4, begin)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + (code - 0xD800 << 10) + (low - 0xDC00)
            self.at = after
        return code

    def property(self, begin: int) -> Charset:
        negated = self.text[self.at] == "P"
        self.at += 1
        end = self.text.find("}", self.at)
        if not self.take("{") or end < 0:
            raise self.error("an escape \\p without a property in braces", begin)
        name = self.text[self.at : end]
        found = properties.named(name) if name.replace("=", "").replace("_", "").isalnum() else None
        if found is None:
            raise self.error(f'an unknown property "{_shown(name)}"', begin)
        self.at = end + 1
        return charsets.complement(found) if negated else found

    # Brackets

    def bracket(self) -> Charset:
        begin = self.at
        self.at += 1
        negated = self.take("^")
        found: list[Charset] = []
        while not self.take("]"):
            if self.at == len(self.text):
                raise self.error('"[" without a "]"', begin)
            if self.peek("[:") and ":]" in self.text[self.at : self.text.find("]", self.at) + 1]:
                raise self.error("a class like [:alpha:], which dialects read differently,")
            first = self.class_atom()
            if not self.peek("-") or self.text[self.at + 1 : self.at + 2] in ("]", ""):
                found.append(first if isinstance(first, tuple) else _one(first))
                continue
            self.at += 1
            at = self.at
            last = self.class_atom()
            if isinstance(first, tuple) or isinstance(last, tuple):
                # A range from or to a class is, by Annex B, both and the hyphen.
                found += [item if isinstance(item, tuple) else _one(item) for item in (first, last)]
                found.append(_one(0x2D))
            elif first > last:
                raise self.error("a range out of order", at)
            else:
                found.append(charsets.of_code_points([(first, last)]))
        charset = charsets.union(*found)
        return charsets.complement(charset) if negated else charset

    def class_atom(self) -> int | Charset:
        """A code point or a set."""
        begin = self.at
        if not self.take("\\"):
            self.at += 1
            return ord(self.text[self.at - 1])
        c = self.text[self.at : self.at + 1]
        if c == "b":
            self.at += 1
            return 0x08
        if c == "-":
            self.at += 1
            return 0x2D
        if c and (c in _CLASSES or c in "pP"):
            self.at = begin
            return self.set_escape()
        if not c:
            raise self.error('"[" without a "]"', begin)
        return self.character_escape(begin)


def _one(code_point: int) -> Charset:
    return charsets.of_code_points([(code_point, code_point)])


def _shown(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "…"


def _count_groups(pattern: str) -> int:
    """How many groups capture, which decides what `\\1` means."""
    n, at, in_class = 0, 0, False
    while at < len(pattern):
        c = pattern[at]
        if c == "\\":
            at += 1
        elif in_class:
            in_class = c != "]"
        elif c == "[":
            in_class = True
        elif c == "(":
            following = pattern[at + 1 : at + 4]
            n += not following.startswith("?") or (
                following.startswith(("?<", "?P<")) and following[:3] not in ("?<=", "?<!")
            )
        at += 1
    return n
