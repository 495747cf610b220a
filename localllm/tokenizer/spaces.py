"""Cuts text before spaces where no token reaches across, so that words can be told apart; it knows no ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

SPACE = "\u2581"  # how vocabularies of characters spell a space
_SPACE = SPACE.encode()


def characters_before_spaces(texts: Iterable[bytes]) -> str:
    """The characters, but for ▁ itself, that have a ▁ right after them in some text, in order, each once."""
    found: set[str] = set()
    for text in texts:
        if _SPACE in text.lstrip(_SPACE):
            found.update(re.findall(f"([^{SPACE}]){SPACE}", text.decode("utf-8", "replace")))
    return "".join(sorted(found))


def splitter_at_spaces(before_spaces: str) -> Callable[[str], list[str]]:
    """A function that cuts a text before each ▁ that follows a character other than ▁ and those of `before_spaces`.

    With the `characters_before_spaces` of all tokens, merging each piece alone gives what merging the whole would:
    a pair around such a place is in no token.
    """
    inside = f"|(?<=[{re.escape(before_spaces)}]){SPACE}+" if before_spaces else ""
    return re.compile(f"{SPACE}*(?:[^{SPACE}]+{inside})+|{SPACE}+").findall
