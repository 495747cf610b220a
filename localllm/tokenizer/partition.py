"""Cuts special tokens out of a text; what is left is for the tokenizer model, which this module does not know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

C_WHITESPACE = " \t\n\v\f\r"
_WHITESPACE_CHARACTERS = frozenset(C_WHITESPACE)


class SpecialPartition:
    """Finds special tokens in text, the longest first, as llama.cpp does.

    `texts` maps ids to their text. `hidden` are the ids that count as ordinary text unless they are asked for (control
    and unknown tokens); the others always match. `lstrip` and `rstrip` are ids that swallow white space beside them.
    """

    def __init__(
        self,
        texts: Mapping[int, str],
        hidden: Iterable[int],
        lstrip: Iterable[int] = (),
        rstrip: Iterable[int] = (),
    ) -> None:
        self._ids = {text: token for token, text in texts.items() if text}
        self._hidden = frozenset(hidden)
        self._lstrip, self._rstrip = frozenset(lstrip), frozenset(rstrip)
        self._lengths: dict[str, list[int]] = {}
        for text in self._ids:
            lengths = self._lengths.setdefault(text[:2], [])
            if len(text) not in lengths:
                lengths.append(len(text))
        firsts = "".join(sorted({text[0] for text in self._ids}))
        self._first = re.compile(f"[{re.escape(firsts)}]") if firsts else None

    def split(self, text: str, parse_special: bool) -> list[str | int]:
        """Non-empty stretches of text and ids of special tokens, in order."""
        fragments: list[str | int] = [text] if text else []
        for special in self._present(text, parse_special):
            fragments = self._cut_out(fragments, special)
        return fragments

    def _present(self, text: str, parse_special: bool) -> list[str]:
        """The special texts that occur, longest (in bytes) first: most vocabularies have thousands that do not."""
        if self._first is None:
            return []
        present = set()
        for match in self._first.finditer(text):
            at = match.start()
            for prefix in (text[at : at + 2], text[at : at + 1]):
                for length in self._lengths.get(prefix, ()):
                    present.add(text[at : at + length])
        ids = {special: self._ids[special] for special in present if special in self._ids}
        chosen = [special for special, token in ids.items() if parse_special or token not in self._hidden]
        return sorted(chosen, key=lambda special: (-len(special.encode()), ids[special]))

    def _cut_out(self, fragments: list[str | int], special: str) -> list[str | int]:
        token = self._ids[special]
        result: list[str | int] = []
        for fragment in fragments:
            if isinstance(fragment, int) or special not in fragment:
                result.append(fragment)
                continue
            start = 0
            while (at := fragment.find(special, start)) >= 0:
                before = fragment[start:at]
                if token in self._lstrip:
                    before = before.rstrip(C_WHITESPACE)
                result.extend([before, token] if before else [token])
                start = at + len(special)
                while token in self._rstrip and fragment[start : start + 1] in _WHITESPACE_CHARACTERS:
                    start += 1
            if start < len(fragment):
                result.append(fragment[start:])
        return result
