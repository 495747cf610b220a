"""Plain columns without borders, as the listings print them; it knows nothing of what stands in them."""

from collections.abc import Sequence

from rich.cells import cell_len

GAP = "    "


def format_columns(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """The rows as lines, cells left-aligned by display width, four blanks apart, no trailing blanks."""
    widths = [max(map(cell_len, cells)) for cells in zip(*rows, strict=True)]
    lines = (
        GAP.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
    return "".join(f"{indent}{line}".rstrip() + "\n" for line in lines)
