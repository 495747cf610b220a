"""What a Modelfile's instructions ask for, with the types of its parameters; it knows nothing of files or stores.

FROM, LICENSE, MESSAGE, ADAPTER, DRAFT and parameters that are lists add up; of everything else the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from localllm.errors import ModelfileError, OptionError
from localllm.modelfile.parser import Instruction
from localllm.options import parse_parameter

# Of Go's semver package: minor and patch may be left out, with what follows them.
_NUMBER, _WORDS = r"(?:0|[1-9]\d*)", r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION = re.compile(rf"v?({_NUMBER}(?:\.{_NUMBER}(?:\.{_NUMBER}(?:-{_WORDS})?(?:\+{_WORDS})?)?)?)")


@dataclass(frozen=True)
class Modelfile:
    """What a model is to be made of. `sources` (FROM), `adapters` and `drafts` are as written: paths or names."""

    sources: list[str] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)
    drafts: list[str] = field(default_factory=list)
    template: str | None = None
    system: str | None = None
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    licenses: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)


def read(instructions: Sequence[Instruction]) -> Modelfile:
    """Everything that the instructions say.

    Raises:
        ModelfileError: a parameter that does not exist, or a value that is none of its type, in Ollama's words; a FROM
            without a value.
    """
    values: dict[str, list[str]] = {}
    for instruction in instructions:
        values.setdefault(instruction.name, []).append(instruction.value)
    if "" in values.get("from", []):
        raise ModelfileError("no FROM line", hint="FROM has no value: it names a model, a GGUF file, or a folder")
    last = {name: values[name][-1] for name in ("template", "system", "renderer", "parser") if name in values}
    return Modelfile(
        sources=values.get("from", []),
        adapters=values.get("adapter", []),
        drafts=values.get("draft", []),
        requires=check_version(values["requires"][-1]) if "requires" in values else None,
        licenses=values.get("license", []),
        parameters=_parameters([one for one in instructions if one.name == "parameter"]),
        messages=[{"role": one.key, "content": one.value, **one.more} for one in instructions if one.name == "message"],
        **last,
    )


def check_version(text: str) -> str:
    """A version without its `v`. Raises: ModelfileError in Ollama's words."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ModelfileError("requires must be a valid semver (e.g. 0.14.0)", hint=f'not "{text:.80}"')
    return match[1]


def _parameters(instructions: Sequence[Instruction]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for instruction in instructions:
        try:
            value = parse_parameter(instruction.key, [instruction.value])
            if isinstance(value, list):
                parameters.setdefault(instruction.key, []).extend(value)
            else:
                parameters[instruction.key] = value
        except OptionError as error:
            hint = ": ".join(filter(None, (f"in line {instruction.line}", error.hint)))
            raise ModelfileError(str(error), line=instruction.line, hint=hint) from error
    return parameters
