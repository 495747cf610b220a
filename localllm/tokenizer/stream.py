"""Turns a stream of tokens into text that is cut between characters only; stop strings are not its business."""

from __future__ import annotations

import codecs
from typing import Protocol


class Pieces(Protocol):
    """What the decoder needs of a tokenizer."""

    def piece(self, token: int, special: bool = False) -> bytes: ...


class StreamDecoder:
    """Decodes tokens one by one.

    The bytes of an unfinished character are held back until it is complete. Bytes that can never become a character
    are U+FFFD. `special` shows control tokens.
    """

    def __init__(self, tokenizer: Pieces, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that is certain after `token`; may be empty."""
        return self._decoder.decode(self._tokenizer.piece(token, self._special))

    @property
    def pending(self) -> bytes:
        """The bytes held back."""
        return self._decoder.getstate()[0]

    def flush(self) -> str:
        """End the text. An unfinished character is dropped, so the result is empty; the decoder can be used anew."""
        self._decoder.reset()
        return ""
