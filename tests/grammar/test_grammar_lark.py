"""Lark's notation: what grammars match, and what is refused, with its place."""

import pytest

from localllm.grammar.errors import GrammarError, LeftRecursionError
from localllm.grammar.lark import parse_lark
from localllm.grammar.lark_common import COMMON
from localllm.grammar.twin import Matcher, matches

SUMS = r"""
    // a calculator
    ?start: sum
        | NAME "=" sum    -> assign_var
    ?sum: product
        | sum "+" product   -> add
        | sum "-" product   -> sub
    ?product: atom
        | product "*" atom  -> mul
    ?atom: NUMBER           -> number
        | "-" atom | NAME | "(" sum ")"

    %import common.CNAME -> NAME   # names as C has them
    %import common.NUMBER
"""
JSON = r"""
    ?start: value
    ?value: object | array | string | SIGNED_NUMBER -> number | "true" | "false" | "null"
    array  : "[" [value ("," value)*] "]"
    object : "{" [pair ("," pair)*] "}"
    pair   : string ":" value
    string : ESCAPED_STRING
    %import common (ESCAPED_STRING, SIGNED_NUMBER)
"""


@pytest.mark.parametrize(
    ("text", "accepts", "rejects"),
    [
        (SUMS, ["1", "x", "a=1+2*-3.5", "(a_1-b)*2-c-d", "1e5+.5"], ["", "1+", "a=b=c", "1++2", "2x", "(1"]),
        (JSON, ["{}", '{"a":[1,-2.5e3,null,"x\\"y"]}', "[[],[true]]"], ["[1,]", "{a:1}", '"a', "[01x]"]),
        ('start: "ab"i "c"', ["abc", "ABc", "aBc"], ["abC", "ac"]),
        ('start: "é!"i', ["é!", "É!"], ["e!"]),
        ('start: "a".."c" "\\u00e0".."é"', ["aà", "cé"], ["dà", "aa"]),
        (r'start: /[a-c]+\/x/ "\n\t\"\\"', ['abc/x\n\t"\\'], ["/x\n", "abcx"]),
        (
            'start: "a" ~ 2 "b"~1..3 "c"{2} "d"{1,} "e"{0,1}',
            ["aabccd", "aabbbccddde"],
            ["abccd", "aabbbbccd", "aabccee"],
        ),
        ('start: A* b+ c?\nA.2: "a"\n!b.-1: "b"\n?c: "c"', ["b", "aabbc"], ["a", "abcc"]),
        ('start: ("a"\n  "b"\n  | "c") [ "d"\n ]', ["ab", "c", "abd", "cd"], ["a", "d", "abdd"]),
        ('start: "a" | | "b" -> other\n\n   | "c" // so\n', ["a", "", "b", "c"], ["ab"]),
        ('start: _x _X\n_x: "a"\n_X: "b"', ["ab"], ["a"]),
        ('start: start "a" | start | "b" | start ("c" | "d")', ["b", "baacd"], ["", "a", "ab"]),
        ('start: x\nx: x "a" |', ["", "aaa"], ["b"]),
    ],
)
def test_texts(text: str, accepts: list[str], rejects: list[str]) -> None:
    grammar = parse_lark(text)
    assert [text for text in accepts if not matches(grammar, text.encode())] == []
    assert [text for text in rejects if matches(grammar, text.encode())] == []


COMMON_TEXTS = {
    "DIGIT": ("7", "77"),
    "HEXDIGIT": ("f", "g"),
    "INT": ("0012", "-1"),
    "SIGNED_INT": ("+12", "1.0"),
    "DECIMAL": ("1.", "1"),
    "FLOAT": ("1e-5", "1"),
    "SIGNED_FLOAT": ("-.5e+1", "-1"),
    "NUMBER": ("1.5", "-1"),
    "SIGNED_NUMBER": ("-1", "--1"),
    "ESCAPED_STRING": ('"a\\"\\\\"', '"a\\"'),
    "LCASE_LETTER": ("a", "A"),
    "UCASE_LETTER": ("A", "a"),
    "LETTER": ("Z", "1"),
    "WORD": ("abC", "a1"),
    "CNAME": ("_a1", "1a"),
    "WS_INLINE": (" \t", "\n"),
    "WS": (" \n\f", ""),
    "CR": ("\r", "\n"),
    "LF": ("\n", "\r"),
    "NEWLINE": ("\n\r\n", "\r"),
    "SH_COMMENT": ("# a", "# a\n"),
    "CPP_COMMENT": ("// a", "/ a"),
    "SQL_COMMENT": ("-- a", "- a"),
    "C_COMMENT": ("/* a **/", "/* a */ */"),
}


@pytest.mark.parametrize("name", COMMON)
def test_common_terminals(name: str) -> None:
    member, other = COMMON_TEXTS[name]
    grammar = parse_lark(f"start: {name}\n%import common.{name}")
    assert matches(grammar, member.encode()) and not matches(grammar, other.encode())


def test_tokens() -> None:
    grammar = parse_lark('start: <think> "a" <[2]>', token_ids={"<think>": 1}.get)
    matcher = Matcher(grammar, [b"a", None, None])
    assert not matcher.accept(0)
    assert all(matcher.accept(token) for token in (1, 0, 2)) and matcher.is_complete()


@pytest.mark.parametrize(
    ("text", "line", "column", "part"),
    [
        ("", 1, 1, '"start"'),
        ('begin: "a"', 1, 1, '"start"'),
        ('start: "a"\n%ignore WS', 2, 1, '"%ignore" is not supported'),
        ('%declare A\nstart: "a"', 1, 1, '"%declare" is not supported'),
        ('start: "a"\n%import python.NAME', 2, 9, "common.NAME"),
        ('start: "a"\n%import common.FOO', 2, 1, "no common.FOO"),
        ("start: a", 1, 8, '"a" is not defined'),
        ('start: "a" B\nB: C', 2, 4, '"C" is not defined'),
        ('start: "a', 1, 8, "string is not closed"),
        ('start: "\\q"', 1, 9, 'unknown escape "\\q"'),
        ("start: /a", 1, 8, "pattern is not closed"),
        ("start: /a(/", 1, 10, "a("),
        ("start: /a/i", 1, 11, 'flags of patterns ("i")'),
        ('start: ("a"', 1, 8, '"(" is not closed'),
        ('start: ["a")', 1, 12, '")" is unexpected'),
        ('start: "a")', 1, 11, '")" is unexpected'),
        ('start "a"', 1, 7, "a definition"),
        ('start: ? "a"', 1, 8, "follows nothing"),
        ('start: "a"~3..1', 1, 11, "at least 3 and at most 1"),
        ('start: "a"~x', 1, 11, "~n"),
        ('start: "b".."a"', 1, 8, "wrong way round"),
        ('start: "ab".."c"', 1, 8, "single characters"),
        ('_x{a}: "a"', 1, 1, "templates"),
        ('start: "a"\nstart: "b"', 2, 1, "defined twice"),
        ("start: <x>", 1, 8, "not one token"),
        ("Start: x", 1, 2, "a definition"),
    ],
)
def test_malformed_or_not_supported(text: str, line: int, column: int, part: str) -> None:
    with pytest.raises(GrammarError) as caught:
        parse_lark(text)
    assert part in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_indirect_left_recursion_is_refused() -> None:
    with pytest.raises(LeftRecursionError, match="start -> a -> start"):
        parse_lark('start: a "x"\na: start "y" | "z"')


def test_depth_meets_no_limit_of_python() -> None:
    grammar = parse_lark("start: " + "(" * 50_000 + '"a"' + ")" * 50_000)
    assert matches(grammar, b"a")
