"""Writes instructions so that `parse` gives them back; it does not know where they come from.

What Ollama's syntax cannot say stands in a comment in front of the nearest that it can, which Ollama reads:

    # localllm:exactly "one\\u200dtwo"
    SYSTEM onetwo
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from localllm.modelfile.parser import EXACTLY, Instruction
from localllm.modelfile.quoting import nearest_value, quoted


def write(instructions: Sequence[Instruction], comments: Sequence[str] = ()) -> str:
    """The text of a Modelfile: `comments` as they are, an empty line, then an instruction after the other."""
    lines = [*comments, *([""] if comments else [])]
    for instruction in instructions:
        lines += _lines(instruction)
    return "".join(f"{line}\n" for line in lines)


def _lines(instruction: Instruction) -> list[str]:
    words = [instruction.name.upper(), *filter(None, [instruction.key]), quoted(instruction.value)]
    line = " ".join(words)
    if not instruction.more and nearest_value(instruction.value) == instruction.value:
        return [line]
    exact = {"content": instruction.value, **instruction.more} if instruction.more else instruction.value
    return [EXACTLY + json.dumps(exact), line]
