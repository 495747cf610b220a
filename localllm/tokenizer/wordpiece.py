"""BERT's WordPiece: normalised words, longest match from the left, a word that does not fit is unknown as a whole.

Where llama.cpp's normaliser and BERT's own differ (spacing marks, Hangul, controls, words of more than 100 characters),
this is BERT's own.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

_DROPPED = ("Cc", "Cf", "Co")  # an unassigned code point stays: it may be a letter of a newer Unicode
_LONGEST_WORD = 100  # a longer one is unknown
SPACE = "\u2581"  # marks the start of a word in a GGUF vocabulary

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),  # as the Hugging Face library has it; the block starts at 2B820
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """The tokenizer model; `encode` takes text without special tokens."""

    def __init__(self, texts: Sequence[bytes], unk: int | None, lowercase: bool, strip_accents: bool) -> None:
        self._ids = {text.decode("utf-8", "replace"): token for token, text in enumerate(texts)}
        self._longest = max(map(len, self._ids), default=0)
        self._unknown = [] if unk is None else [unk]
        self._lowercase, self._strip_accents = lowercase, strip_accents

    def encode(self, text: str, after_special: bool = True) -> list[int]:
        """The ids of `text`."""
        return [token for word in self._words(text) for token in self._pieces(SPACE + word)]

    def _words(self, text: str) -> Iterator[str]:
        if self._strip_accents:
            text = unicodedata.normalize("NFD", text)
        word: list[str] = []
        for character in text:
            category = unicodedata.category(character)
            if category.startswith("Z") or character in "\t\n\r":
                yield from _joined(word)
            elif category in _DROPPED or character == "\ufffd" or (category == "Mn" and self._strip_accents):
                continue
            elif _stands_alone(character, category):
                yield from _joined(word)
                yield character
            else:
                word.append(character.lower() if self._lowercase else character)
        yield from _joined(word)

    def _pieces(self, word: str) -> list[int]:
        if len(word) > _LONGEST_WORD + len(SPACE):
            return self._unknown
        pieces = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                token = self._ids.get(word[start:end])
                if token is not None:
                    break
            else:
                return self._unknown
            pieces.append(token)
            start = end
        return pieces


def _joined(word: list[str]) -> Iterator[str]:
    if word:
        yield "".join(word)
        word.clear()


def _stands_alone(character: str, category: str) -> bool:
    code = ord(character)
    if category.startswith("P") or (code < 0x7F and category.startswith("S")):
        return True
    return any(first <= code <= last for first, last in _IDEOGRAPHS)
