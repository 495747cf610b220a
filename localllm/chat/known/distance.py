"""How far two texts are apart; it knows nothing of templates."""

from __future__ import annotations


def edit_distance(a: str, b: str, most: int) -> int:
    """Insertions, deletions and replacements between two texts (Levenshtein 1966), at most `most` + 1.

    Only the diagonals that can stay within `most` are looked at: O(len(a) * most).
    """
    if abs(len(a) - len(b)) > most:
        return most + 1
    far = most + 1
    row = {j: j for j in range(min(len(b), most) + 1)}
    for i, char in enumerate(a, 1):
        next_row: dict[int, int] = {}
        for j in range(max(0, i - most), min(len(b), i + most) + 1):
            replaced = row.get(j - 1, far) + (char != b[j - 1]) if j else i
            next_row[j] = min(replaced, row.get(j, far) + 1, next_row.get(j - 1, far) + 1, far)
        row = next_row
        if min(row.values()) > most:
            return far
    return row[len(b)]
