"""Random expressions, printed as GBNF and parsed: they match what a matcher of a few lines says."""

from hypothesis import given
from hypothesis import strategies as st

from localllm.grammar.gbnf import parse_gbnf
from localllm.grammar.twin import matches

ALPHABET = 'ab"]-\\\né🔥'
ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "]": "\\]",
    "-": "\\-",
    "\n": "\\n",
    "é": "\\xE9",
    "🔥": "\\U0001F525",
    "a": "\\u0061",
}

# An expression is (kind, what it is of).
characters = st.sampled_from(ALPHABET)
leaves = (
    st.tuples(st.just("literal"), st.lists(st.tuples(characters, st.booleans()), max_size=3))
    | st.tuples(st.just("class"), st.booleans(), st.lists(st.tuples(characters, characters), min_size=1, max_size=3))
    | st.just(("any",))
    | st.just(("rule",))
)
expressions = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(st.just("sequence"), st.lists(inner, max_size=3))
        | st.tuples(st.just("choice"), st.lists(inner, min_size=1, max_size=3))
        | st.tuples(st.just("repeat"), inner, st.integers(0, 3), st.none() | st.integers(0, 3))
    ),
    max_leaves=8,
)
RULE = ("sequence", [("literal", [("b", False)]), ("repeat", ("any",), 0, 1)])


def printed(e: tuple, choose: st.DataObject) -> str:
    """GBNF of an expression, with some of its freedoms."""
    space = choose.draw(st.sampled_from(["", " ", "\t", " \n # )\n "]))
    if e[0] == "literal":
        return '"' + "".join(ESCAPES.get(c, c) if escaped or c in '"\\' else c for c, escaped in e[1]) + '"'
    if e[0] == "class":
        ends = [tuple(ESCAPES.get(c, c) for c in sorted(pair)) for pair in e[2]]
        return "[" + "^" * e[1] + "".join(a if a == b else f"{a}-{b}" for a, b in ends) + "]"
    if e[0] == "any":
        return "."
    if e[0] == "rule":
        return "some-Rule2"
    if e[0] == "sequence":
        return "(" + space + f"{space} ".join(printed(item, choose) for item in e[1]) + ")"
    if e[0] == "choice":
        return "(" + f"{space}|{space}".join(printed(item, choose) for item in e[1]) + space + ")"
    _, inner, least, extra = e
    most = None if extra is None else least + extra
    bounds = f"{least},{'' if most is None else most}" if extra != 0 else str(least)
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    postfix = short if short and choose.draw(st.booleans()) else "{" + bounds + "}"
    return f"{printed(inner, choose)}{space}{postfix}"


def ends(e: tuple, text: str, begin: int) -> set[int]:
    """Where a match from `begin` may end."""
    if e[0] == "literal":
        literal = "".join(c for c, _ in e[1])
        return {begin + len(literal)} if text.startswith(literal, begin) else set()
    if e[0] in ("class", "any"):
        if begin == len(text):
            return set()
        within = e[0] == "any" or any(min(pair) <= text[begin] <= max(pair) for pair in e[2]) != e[1]
        return {begin + 1} if within else set()
    if e[0] == "rule":
        return ends(RULE, text, begin)
    if e[0] == "sequence":
        found = {begin}
        for item in e[1]:
            found = {end for at in found for end in ends(item, text, at)}
        return found
    if e[0] == "choice":
        return {end for item in e[1] for end in ends(item, text, begin)}
    _, inner, least, extra = e
    found, reached = set(), {begin}
    for n in range(least + (len(text) + 1 if extra is None else extra) + 1):
        if n >= least:
            found |= reached
        reached = {end for at in reached for end in ends(inner, text, at)}
    return found


@given(expressions, st.lists(st.text(ALPHABET, max_size=6), min_size=1, max_size=8), st.data())
def test_parsed_expressions_match_as_printed(e: tuple, texts: list[str], data: st.DataObject) -> None:
    root = ("choice", [e, ("literal", [("b", False), ("b", False)])])  # so that something matches
    grammar = parse_gbnf(f"root ::= {printed(root, data)}\nsome-Rule2 ::= {printed(RULE, data)}")
    for text in ["", "bb", *texts]:
        assert matches(grammar, text.encode()) == (len(text) in ends(root, text, 0)), text
