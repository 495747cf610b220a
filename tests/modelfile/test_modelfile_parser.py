"""The grammar of Modelfiles: Ollama's rules, texts and line numbers, and properties that hold for any input."""

import contextlib
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localllm.errors import ModelfileError
from localllm.modelfile import Instruction, decode, parse, read, write

F = "FROM m\n"


def values(text: str) -> list[tuple[str, str, str]]:
    return [(one.name, one.key, one.value) for one in parse(text)]


def value_of(rest: str) -> str:
    """The value of SYSTEM followed by this, in a file that goes on after it."""
    (_, system, *_) = parse(f"{F}SYSTEM {rest}\nLICENSE x\n")
    assert system.name == "system"
    return system.value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("plain text  ", "plain text"),
        ("  \t leading", "leading"),
        ('"  kept  "', "  kept  "),
        ('"""  kept\n  too """  ', "  kept\n  too "),
        ('"a "b" c"', 'a "b" c'),
        ('say "x"', 'say "x"'),
        ("'single'", "'single'"),
        ("# no comment", "# no comment"),
        ("x # no comment", "x # no comment"),
        ('""', ""),
        ('""""""', ""),
        ('"""a"b"""', 'a"b'),
        ('"""""""', '"'),
        ('"one\ntwo"', "one\ntwo"),
        ('"one\r\n\r\ntwo"', "one\r\n\r\ntwo"),
        ('"""\none\n"""', "\none\n"),
        ('"""one"\n"two"""', 'one"\n"two'),
        ('"one" two\nthree"', 'one" two\nthree'),
        ("a\u200db\u00a0c\ufeffd\x07e", "abcde"),
        ("tab\tkept 🏴 ａ", "tab\tkept 🏴 ａ"),
        ("\\n is no escape", "\\n is no escape"),
        ("", ""),
        ("   ", ""),
    ],
)
def test_values(written: str, value: str) -> None:
    assert value_of(written) == value


def test_a_value_that_is_closed_by_a_later_line_takes_the_lines_between() -> None:
    assert values(f'{F}SYSTEM "x" y\nFROM z\nLICENSE "a"\n') == [
        ("from", "", "m"),
        ("system", "", 'x" y\nFROM z\nLICENSE "a'),
    ]


def test_instructions_in_any_case_and_order() -> None:
    text = (
        "# a comment\n\n  \tsystem hi\r\n"
        "Parameter  stop  a b\nMESSAGE user # FROM x\n\n#FROM y\nmessage \t assistant ok\r"
        "AdApTeR ./a\ndraft d\nRENDERER r\nPARSER p\nREQUIRES v0.14\nTEMPLATE {{ .Prompt }}\nLICENSE MIT\n"
        "FROM a b  \nFROM c"
    )
    assert values(text) == [
        ("system", "", "hi"),
        ("parameter", "stop", "a b"),
        ("message", "user", "# FROM x"),
        ("message", "assistant", "ok"),
        ("adapter", "", "./a"),
        ("draft", "", "d"),
        ("renderer", "", "r"),
        ("parser", "", "p"),
        ("requires", "", "v0.14"),
        ("template", "", "{{ .Prompt }}"),
        ("license", "", "MIT"),
        ("from", "", "a b"),
        ("from", "", "c"),
    ]
    assert [one.line for one in parse(text)][:4] == [3, 4, 5, 8]


COMMANDS = (
    'command must be one of "from", "license", "template", "system", "adapter", "draft", "renderer", "parser", '
    '"parameter", "message", or "requires"'
)
ROLES = 'message role must be one of "system", "user", or "assistant"'


@pytest.mark.parametrize(
    ("text", "error", "line", "hint"),
    [
        ("", "no FROM line", 0, "FROM names a model"),
        ("# FROM m\n", "no FROM line", 0, "FROM names a model"),
        ("PARAMETR x 1\n", f"(line 1): {COMMANDS}", 1, "did you mean PARAMETER?"),
        (F + "\nSYTEM x\n", f"(line 3): {COMMANDS}", 3, "did you mean SYSTEM?"),
        ("FROM m\r\nSYTEM x\r\n", f"(line 3): {COMMANDS}", 2, "in line 2: did you mean SYSTEM?"),
        ("FROM\n", f"(line 2): {COMMANDS}", 1, "in line 1"),
        ("FROM", "unexpected EOF", 1, "in line 1"),
        (F + "1FROM x\n", f"(line 2): {COMMANDS}", 2, "did you mean FROM?"),
        (F + "FROM: x\n", f"(line 2): {COMMANDS}", 2, "did you mean FROM?"),
        (F + "\u00e9FROM x\n", f"(line 2): {COMMANDS}", 2, "did you mean FROM?"),
        (F + "MESSAGE User hi\n", f"(line 2): {ROLES}", 2, "did you mean user?"),
        (F + "MESSAGE tool hi\n", f"(line 2): {ROLES}", 2, None),
        (F + "MESSAGE us3r hi\n", "unexpected EOF: us", 2, "in line 2"),
        (F + "MESSAGE user\n", "unexpected EOF: user", 2, "in line 2"),
        (F + "PARAMETER top-k 1\n", "unexpected EOF: top", 2, "in line 2"),
        (F + "PARAMETER stop", "unexpected EOF", 2, "in line 2"),
        (F + 'SYSTEM """a\nb\n\n', "unexpected EOF", 5, 'in line 5: the text that """ opens in line 2 has no end'),
        (F + 'SYSTEM "', "unexpected EOF", 2, 'in line 2: the text that " opens in line 2 has no end'),
        (F + 'SYSTEM """""\n', "unexpected EOF", 3, 'in line 3: the text that """ opens in line 2 has no end'),
    ],
)
def test_errors_name_the_line_and_what_was_meant(text: str, error: str, line: int, hint: str | None) -> None:
    with pytest.raises(ModelfileError) as raised:
        parse(text)
    assert (str(raised.value), raised.value.line) == (error, line)
    assert raised.value.hint == hint or (hint and str(raised.value.hint).startswith(hint))


@pytest.mark.parametrize(
    "encoded",
    [
        b"FROM m\nSYSTEM h\xc3\xa9",
        b"\xef\xbb\xbfFROM m\nSYSTEM h\xc3\xa9",
        b"\xff\xfe" + "FROM m\r\nSYSTEM hé\r\n".encode("utf-16-le"),
        b"\xfe\xff" + "FROM m\rSYSTEM hé\r".encode("utf-16-be"),
    ],
)
def test_encodings(encoded: bytes) -> None:
    assert values(decode(encoded)) == [("from", "", "m"), ("system", "", "hé")]


def test_invalid_bytes_become_replacement_characters() -> None:
    assert values(decode(b"FROM m\nSYSTEM a\xffb")) == [("from", "", "m"), ("system", "", "a\ufffdb")]
    assert decode(b"\xff\xfeF\0\0") == "F\ufffd"


# ---- what it is made of


def test_what_adds_up_and_what_is_said_last() -> None:
    made = read(
        parse(
            "FROM a\nFROM b\nSYSTEM x\nSYSTEM y\nTEMPLATE t\nLICENSE 1\nLICENSE 2\nADAPTER p\nDRAFT d\n"
            "RENDERER r\nPARSER q\nREQUIRES v0.14.0\nPARAMETER stop a\nPARAMETER top_k 3\nPARAMETER stop b\n"
            "PARAMETER top_k 4\n"
            'PARAMETER logit_bias {"1": -2}\nPARAMETER low_vram true\nMESSAGE user u\nMESSAGE assistant """v\nw"""\n'
        )
    )
    assert (made.sources, made.system, made.template, made.licenses) == (["a", "b"], "y", "t", ["1", "2"])
    assert (made.adapters, made.drafts, made.renderer, made.parser, made.requires) == (["p"], ["d"], "r", "q", "0.14.0")
    assert made.parameters == {"stop": ["a", "b"], "top_k": 4, "logit_bias": {"1": -2}, "low_vram": True}
    assert made.messages == [{"role": "user", "content": "u"}, {"role": "assistant", "content": "v\nw"}]


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("PARAMETER temprature 1", "unknown parameter 'temprature'", "in line 3: did you mean `temperature`?"),
        ("PARAMETER Temperature 1", "unknown parameter 'Temperature'", "in line 3: did you mean `temperature`?"),
        ("PARAMETER top_k x", "invalid int value [x]", "in line 3"),
        ("PARAMETER top_k １", "invalid int value [１]", "in line 3"),
        ("PARAMETER top_p 1_0", "invalid float value [1_0]", "in line 3"),
        ("PARAMETER ignore_eos yes", "invalid bool value [yes]", "in line 3"),
        ("REQUIRES x", "requires must be a valid semver (e.g. 0.14.0)", 'not "x"'),
        ("REQUIRES 1.02.3", "requires must be a valid semver (e.g. 0.14.0)", 'not "1.02.3"'),
        ("FROM ", "no FROM line", "FROM has no value"),
    ],
)
def test_values_of_the_wrong_type(line: str, error: str, hint: str) -> None:
    with pytest.raises(ModelfileError) as raised:
        read(parse(f"{F}# here\n{line}\n"))
    assert str(raised.value) == error and str(raised.value.hint).startswith(hint)


@pytest.mark.parametrize("version", ["0.14.0", "v1.2.3-rc.1+b", "1", "v0.14"])
def test_versions(version: str) -> None:
    assert read(parse(f"{F}REQUIRES {version}\n")).requires == version.removeprefix("v")


# ---- properties

_PIECES = [
    "\n",
    "\r",
    "\r\n",
    '"',
    '"""',
    " ",
    "\t",
    "#",
    "'",
    "\u200d",
    "\u00a0",
    "x",
    "FROM m",
    "MESSAGE user ",
    "SYSTEM ",
    "é",
]
TEXTS = st.one_of(
    st.text(st.characters(codec=None), max_size=40),
    st.lists(st.sampled_from(_PIECES), max_size=14).map("".join),
)
MORE = st.dictionaries(st.sampled_from(["thinking", "tool_calls"]), TEXTS, max_size=1)
INSTRUCTIONS = st.one_of(
    st.builds(Instruction, st.sampled_from(["from", "license", "template", "system", "adapter", "requires"]), TEXTS),
    st.builds(Instruction, st.just("parameter"), TEXTS, st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True)),
    st.builds(Instruction, st.just("message"), TEXTS, st.sampled_from(["system", "user", "assistant"]), MORE),
)


@given(st.lists(INSTRUCTIONS, max_size=6))
@example([Instruction("system", 'a"""\nb')])
@example([Instruction("system", '"')])
@example([Instruction("message", "x", "user", {"thinking": "\n"})])
def test_what_is_written_is_read_again(instructions: list[Instruction]) -> None:
    first = Instruction("from", "m")
    assert parse(write([first, *instructions], ["# made by a test"])) == [first, *instructions]


@given(st.lists(INSTRUCTIONS, max_size=4))
def test_writing_is_stable(instructions: list[Instruction]) -> None:
    text = write([Instruction("from", "m"), *instructions])
    assert write(parse(text)) == text


@given(st.one_of(TEXTS, st.lists(st.sampled_from(_PIECES), max_size=60).map("".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read(parse(text))
    except ModelfileError as error:
        assert error.line <= text.count("\n") + text.count("\r") + 1


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        parse(decode(content))
    except ModelfileError:
        return


@pytest.mark.parametrize(
    "text",
    [
        F + 'SYSTEM "' + "\n" * 300_000,
        F + 'SYSTEM """' + "a\n" * 300_000,
        F + 'SYSTEM "' + " \n" * 300_000,
        "#\n" * 300_000,
        F * 100_000,
        F + "PARAMETER stop x\n" * 50_000,
        "\u200d" * 500_000,
    ],
)
def test_hostile_texts_take_linear_time(text: str) -> None:
    started = time.monotonic()
    with contextlib.suppress(ModelfileError):
        read(parse(text))
    assert time.monotonic() - started < 10


def test_an_exact_value_counts_only_for_the_text_it_was_written_for() -> None:
    text = write([Instruction("from", "m"), Instruction("system", "a\u200db")])
    assert "SYSTEM ab\n" in text
    assert parse(text)[1].value == "a\u200db"
    assert parse(text.replace("SYSTEM ab", "SYSTEM ac"))[1].value == "ac"
    for comment in ("{", "[1]", '"x"', "9" * 5000, "[" * 5000):
        assert parse(f"{F}# localllm:exactly {comment}\nSYSTEM ab\n")[1].value == "ab"


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("plain", "SYSTEM plain"),
        (" blanks ", 'SYSTEM " blanks "'),
        ('inner "quotes"', 'SYSTEM inner "quotes"'),
        ('"quoted"', 'SYSTEM """"quoted""""'),
        ('a\n"b"', 'SYSTEM """a\n"b""""'),
        ("a\nb", 'SYSTEM "a\nb"'),
        ("", 'SYSTEM ""'),
        ('a"""\nb', '# localllm:exactly "a\\"\\"\\"\\nb"\nSYSTEM "a\'\'\'\nb"'),
    ],
)
def test_how_values_are_quoted(value: str, line: str) -> None:
    assert write([Instruction("system", value)]) == f"{line}\n"
