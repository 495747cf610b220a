"""GBNF: what grammars match, and what is refused, with its place."""

import re
import time
from pathlib import Path

import pytest
import yaml

from localllm.grammar.errors import GrammarError, LeftRecursionError
from localllm.grammar.expressions import Grammar
from localllm.grammar.gbnf import parse_gbnf
from localllm.grammar.twin import Matcher, matches

FIXTURES = Path(__file__).parents[1] / "fixtures" / "grammar"
CASES = yaml.safe_load((FIXTURES / "gbnf-cases.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_cases(case: dict) -> None:
    grammar = parse_gbnf(case["grammar"], root=case.get("root", "root"))
    assert [text for text in case["accepts"] if not matches(grammar, text.encode())] == []
    assert [text for text in case["rejects"] if matches(grammar, text.encode())] == []


SAMPLES = {
    "json": (
        ['{"a": 1}', '{\n  "a": [true, null, -1.5e+3, "x\\u00e9\\n"],\n  "b": {}\n}', "{}"],
        ["[1]", '{"a" 1}', '{"a": 01}', '{"a": "\n"}', '{"a": 1,}', "{   }"],
    ),
    "json_arr": (["[\n1\n]", '[\n{"a":[1,2]},\n"b",\nnull\n]'], ["[]", "[\n1, 2\n]", "[\n1,\n]"]),
    "arithmetic": (["1 + 1 = 2\n", "(x_1*2)-y=10\n3=3\n"], ["", "1 + = 2\n", "1=2", "1x=2\n"]),
    "c": (
        [
            "",
            "int main() {\n  return 0;\n}\n",
            "float f(int a, float b_2) {\n    // none\n    while (a < 3) {\n      a = a + 1 * -b_2;\n    }\n"
            "    if (g(a, 1.5) == a) {\n      h();\n    } else {\n      return (a);\n    }\n}\n",
        ],
        ["int main() {\n  return 0\n}\n", "main() {\n}\n", "int f() {\n  x + 1;\n}\n"],
    ),
    "chess": (
        ["1. e4 e5\n2. Nf3 Nc6\n3. Bb5 a6\n4. O-O exd4+\n", "1. d4 e8=Q#\n"],
        ["e4 e5\n", "1. e9 e5\n", "1. e4 e5\n0. a4 a5\n", "1. e4\n"],
    ),
    "japanese": (["こんにちは", "東京タワー、\n大阪"], ["", "abc", "こ  に", "こ "]),
    "list": (["- eggs\n", "- eggs\n- 牛乳 and bread\n"], ["", "eggs\n", "- eggs", "- \n", "- a\u2028b\n"]),
    "english": (["Yes.", 'He said, "no", twice; it\'s 42 — or so! Why?'], ["yes", "Yes,.", "NO."]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_grammars(name: str) -> None:
    grammar = parse_gbnf((FIXTURES / f"{name}.gbnf").read_text(encoding="utf-8"))
    accepts, rejects = SAMPLES[name]
    assert [text for text in accepts if not matches(grammar, text.encode())] == []
    assert [text for text in rejects if matches(grammar, text.encode())] == []


def test_every_sample_is_tested() -> None:
    assert {path.stem for path in FIXTURES.glob("*.gbnf")} == set(SAMPLES)


def counted(text: str) -> Grammar:
    return parse_gbnf(f"root ::= {text}")


@pytest.mark.parametrize("most", [2000, 5000])
def test_large_bounds_are_exact(most: int) -> None:
    grammar = counted(f'[ab]{{3,{most}}} "c"')
    assert matches(grammar, b"a" * most + b"c") and matches(grammar, b"abac")
    assert not matches(grammar, b"a" * (most + 1) + b"c") and not matches(grammar, b"aac")


# Tokens: pieces None are special tokens, which have no text.
PIECES = [b"a", b"b", b"hello", None, b" ", None, None, None, None, b"ab", None, None, None, None, b"x", b"y"]


@pytest.mark.parametrize(
    ("text", "accepts", "rejects"),
    [
        (
            "<[10]> (!<[11]>)* <[11]>",
            [[10, 11], [10, 2, 4, 11], [10, 12, 13, 10, 5, 0, 11]],
            [[], [10], [11], [10, 2], [11, 10], [10, 11, 11], [2, 11], [2]],
        ),
        (
            '(<[10]> (!<[11]>)* <[11]>)+ <[5]> [ab]* <[6]> (<[12]> "ab" <[13]> [xy]+)*',
            [
                [10, 11, 5, 6],
                [10, 2, 11, 10, 5, 6, 12, 11, 5, 0, 1, 9, 6],
                [10, 11, 5, 6, 12, 9, 13, 14],
                [10, 11, 5, 6, 12, 0, 1, 13, 14, 15, 12, 9, 13, 15],
            ],
            [
                [5, 6],
                [10, 11],
                [10, 5, 6],
                [10, 11, 5],
                [10, 11, 5, 6, 6],
                [10, 11, 5, 6, 12, 13, 14],
                [10, 11, 5, 14, 6],
            ],
        ),
        ("<[2]> | <think> [ab]", [[2], [7, 0]], [[7], [2, 0], [7, 2]]),
        ("!<think>", [[2], [0], [10]], [[7], [2, 2]]),
    ],
)
def test_tokens(text: str, accepts: list[list[int]], rejects: list[list[int]]) -> None:
    grammar = parse_gbnf(f"root ::= {text}", token_ids={"<think>": 7}.get)

    def takes(tokens: list[int]) -> bool:
        matcher = Matcher(grammar, PIECES)
        return all(matcher.accept(token) for token in tokens) and matcher.is_complete()

    assert [tokens for tokens in accepts if not takes(tokens)] == []
    assert [tokens for tokens in rejects if takes(tokens)] == []


MALFORMED = [
    # text, line, column, part of the message
    ("", 1, 1, "no rules"),
    ("# nothing", 1, 1, "no rules"),
    ('rot ::= "a"', 1, 1, 'no rule is named "root"'),
    ("root ::= number\nnumber ::= numero", 2, 12, 'the rule "numero" is not defined'),
    ("root ::= missing", 1, 10, "missing"),
    ('root ::= "a', 1, 10, "literal is not closed"),
    ('root ::= "a\\"', 1, 10, "literal is not closed"),
    ('root ::= "a\\q"', 1, 12, 'unknown escape "\\q"'),
    ('root ::= "\\x4"', 1, 11, "2 hexadecimal digits"),
    ("root ::= [\\u12]", 1, 11, "4 hexadecimal digits"),
    ('root ::= "\\uD83D"', 1, 11, "U+D83D is no character"),
    ('root ::= "\\U00110000"', 1, 11, "U+110000 is no character"),
    ('root ::= "\ud83d"', 1, 11, "U+D83D is no character"),
    ("root ::= [z-a]", 1, 11, '"z-a" is the wrong way round'),
    ("root ::= [a", 1, 10, "class is not closed"),
    ("root ::= []", 1, 10, "without characters"),
    ("root ::= [^]", 1, 10, "without characters"),
    ("root ::= [^\\u0000-\\U0010FFFF]", 1, 10, "excludes every character"),
    ('root ::= "a"{5,2}', 1, 13, "{5,2}"),
    ('root ::= "a"{,2}', 1, 13, "{m,n}"),
    ('root ::= "a"{,}', 1, 13, "{m,n}"),
    ('root ::= "a"{', 1, 13, "{m,n}"),
    ('root ::= "a"{-1}', 1, 13, "{m,n}"),
    ('root ::= "a"{2 3}', 1, 13, "{m,n}"),
    ('root ::= "a"{99999999999}', 1, 13, "999,999,999 times"),
    ('root ::= * "a"', 1, 10, '"*" follows nothing'),
    ('root ::= ("a" | ?)', 1, 17, '"?" follows nothing'),
    ('root ::= ("a"\nb ::= "c"', 2, 3, '":" is unexpected'),
    ('root ::= ("a"', 1, 10, '"(" is not closed'),
    ('root ::= "a")', 1, 13, '")" is unexpected'),
    ('root := "a"', 1, 6, '"::="'),
    ("root", 1, 5, '"::="'),
    ('root ::= "a"\n::= "b"', 2, 1, "a rule's name"),
    ('root ::= "a"\n\n  ro_ot ::= "b"', 3, 5, '"_" is unexpected'),
    ('root ::= "a" x ::= "b"', 1, 16, '":" is unexpected'),
    ('x ::= "a"\nroot ::= x\nx ::= "b"', 3, 1, 'the rule "x" is defined twice, first in line 1'),
    ("root ::= <think>", 1, 10, "no vocabulary"),
    ("root ::= <[x]>", 1, 10, "<[id]>"),
    ("root ::= <a", 1, 10, "<[id]>"),
    ('root ::= ! "a"', 1, 10, "<[id]>"),
]


@pytest.mark.parametrize(("text", "line", "column", "part"), MALFORMED)
def test_malformed(text: str, line: int, column: int, part: str) -> None:
    with pytest.raises(GrammarError) as caught:
        parse_gbnf(text)
    assert part in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


def test_errors_have_a_caret_below_the_place() -> None:
    with pytest.raises(GrammarError) as caught:
        parse_gbnf('root ::= x\nx\t::= "é" undefined # so')
    assert str(caught.value).split("\n")[1:] == ['x\t::= "é" undefined # so', " \t        ^"]


def test_long_lines_are_shown_in_part() -> None:
    with pytest.raises(GrammarError) as caught:
        parse_gbnf("root ::= " + '"a" ' * 500 + "[z-a]" + ' "b"' * 500)
    _, shown, caret = str(caught.value).split("\n")
    assert len(shown) <= 80 and shown[len(caret) - 1 :].startswith("z-a]")


def test_names_are_case_sensitive() -> None:
    with pytest.raises(GrammarError) as caught:
        parse_gbnf('Root ::= "a"')
    assert caught.value.hint == 'names are case-sensitive, and there is "Root"'
    with pytest.raises(GrammarError, match='"nonexistent"'):
        parse_gbnf('root ::= "a"', root="nonexistent")


def test_a_text_that_is_no_token() -> None:
    with pytest.raises(GrammarError, match='"<two tokens>" is not one token of this model'):
        parse_gbnf("root ::= <two tokens>", token_ids={}.get)


@pytest.mark.parametrize(
    ("text", "rules", "line", "column"),
    [
        ('root ::= "a" | root "a"', ("root", "root"), 1, 16),
        ('root ::= asdf\nasdf ::= "a" | asdf "a"', ("asdf", "asdf"), 2, 16),
        ('root ::= asdf\nasdf ::= "a" | foo "b"\nfoo ::= "c" | asdf "d"', ("asdf", "foo", "asdf"), 3, 15),
        ('root ::= asdf\nasdf ::= "a" | empty asdf\nempty ::= "x" | ', ("asdf", "asdf"), 2, 22),
        ('root ::= "a"? [b]* ("c" | root)', ("root", "root"), 1, 27),
        ('root ::= "a"\nunused ::= unused{3}', ("unused", "unused"), 2, 12),
        ('root ::= e\ne ::= n | e "+" e\nn ::= [0-9]+', ("e", "e"), 2, 11),
    ],
)
def test_left_recursion(text: str, rules: tuple[str, ...], line: int, column: int) -> None:
    with pytest.raises(LeftRecursionError, match=re.escape("left recursion: " + " -> ".join(rules))) as caught:
        parse_gbnf(text)
    assert (caught.value.rules, caught.value.line, caught.value.column) == (rules, line, column)


N = 50_000
DEEP = {
    "parentheses": "(" * N + '"a"' + ")" * N,
    "sequences": '("a" ' * N + '"a"' + ")" * N,
    "stars": "(" * N + '"a"' + ")*" * N,
    "choices": "(" * N + '"a"' + '|"b")' * N,
    "unclosed": '"a" | ' + "(" * N,
    "alternatives": '"a"' + "|" * N,
    "rules": "r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)) + '\nr5000 ::= "a"',
    "cycle": "r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)) + "\nr5000 ::= r0",
    "opening brackets": "[" * N,
    "quotes": '"\\' * N,
}


@pytest.mark.parametrize("name", DEEP)
def test_depth_and_length_meet_no_limit_of_python(name: str) -> None:
    begin = time.monotonic()
    try:
        parse_gbnf(f"root ::= {DEEP[name]}")
    except GrammarError:
        assert name in ("unclosed", "cycle", "opening brackets", "quotes")
    assert time.monotonic() - begin < 20  # a hang, not speed


def test_deep_groups_and_long_chains_of_rules_match() -> None:
    for name in ("parentheses", "rules"):
        grammar = counted(DEEP[name])
        assert matches(grammar, b"a") and not matches(grammar, b"aa")
