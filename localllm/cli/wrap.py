"""Word wrap of a stream by display width; it knows nothing of where the text comes from.

A word is written only when it is complete, so that nothing ever has to be erased: whatever widths the terminal
gives to rare characters, no text is doubled or lost.
"""

from collections.abc import Callable

from rich.cells import get_character_cell_size

MIN_COLUMNS = 3
TAB_STOP = 8
_ZERO_WIDTH_JOINER = "\u200d"
# Closing marks stay with the character before them, as East Asian typography asks.
_CLOSING = frozenset("，。、！？：；）」』】》〉〕”’…‥ー々")


class WordWrap:
    """Feeds text to `write` with line feeds inserted so that no row is wider than `columns() - 1` cells.

    The last column stays free: a terminal that has filled it keeps the cursor in a state of its own. Wide
    characters may be separated anywhere, other words move whole unless they are longer than a row.
    """

    def __init__(self, write: Callable[[str], object], columns: Callable[[], int]) -> None:
        self._write = write
        self._columns = columns
        self._column = 0
        self._word = ""
        self._word_cells = 0
        self._inside_long_word = False

    def feed(self, text: str) -> None:
        """Takes the next piece of text; an unfinished word is kept back."""
        self._limit = max(self._columns(), MIN_COLUMNS) - 1
        for character in text:
            if character == "\n":
                self._end_word()
                self._break_row()
            elif character in (" ", "\t"):
                self._end_word()
                self._put_blank(character)
            else:
                self._put(character, get_character_cell_size(character))

    def flush(self) -> None:
        """Writes the word kept back."""
        self._limit = max(self._columns(), MIN_COLUMNS) - 1
        self._end_word()

    def _put(self, character: str, cells: int) -> None:
        if self._word and self._separates(character, cells):
            self._end_word()
        self._word += character
        self._word_cells += cells
        if self._word_cells > self._limit or self._inside_long_word:
            self._put_long_word()

    def _separates(self, character: str, cells: int) -> bool:
        """Whether a row may end between the word so far and `character`."""
        if cells == 0 or character in _CLOSING or self._word.endswith(_ZERO_WIDTH_JOINER):
            return False
        return cells == 2 or get_character_cell_size(self._word[-1]) == 2

    def _put_blank(self, blank: str) -> None:
        cells = 1 if blank == " " else TAB_STOP - self._column % TAB_STOP
        if self._column + cells <= self._limit:
            self._write(blank)
            self._column += cells
        else:
            self._column = self._limit

    def _end_word(self) -> None:
        if self._word:
            self._start_row_unless_fits(self._word_cells)
            self._write(self._word)
            self._column += self._word_cells
        self._word, self._word_cells, self._inside_long_word = "", 0, False

    def _put_long_word(self) -> None:
        """Writes a word wider than a row, broken at characters."""
        if not self._inside_long_word:
            self._start_row_unless_fits(self._word_cells)
        for character in self._word:
            cells = get_character_cell_size(character)
            self._start_row_unless_fits(cells)
            self._write(character)
            self._column += cells
        self._word, self._word_cells, self._inside_long_word = "", 0, True

    def _start_row_unless_fits(self, cells: int) -> None:
        if self._column and self._column + cells > self._limit:
            self._break_row()

    def _break_row(self) -> None:
        self._write("\n")
        self._column = 0
