"""Finds and checks the files of a split model, standard library only; it does not look at tensor data.

A split model is `<prefix>-00001-of-00003.gguf` and so on. Each part carries `split.no` (from 0), `split.count` and
`split.tensors.count` (the total over all parts); the other metadata is in part 0 alone. Files in a blob store
have no such names: there all parts are given, in any order, and `split.no` tells which is which.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from localllm.errors import GGUFError
from localllm.gguf.header import EndOfStrings, Header

PART_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
AnyPath = str | os.PathLike[str]


def open_parts(paths: AnyPath | Sequence[AnyPath], end_of_strings: EndOfStrings | None = None) -> list[Header]:
    """The headers of a model in the order of its parts; a file that is not split gives one.

    `paths` is any one part of a split model that has its usual names, or every part in any order.
    `end_of_strings` is for `Header`.

    Raises:
        GGUFError: a file is damaged; a part is missing, double, or belongs to another model.
    """
    given = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    if not given:
        raise GGUFError("no GGUF file given")
    headers: list[Header] = []
    try:
        headers.append(Header(given[0], end_of_strings))
        if _split_number(headers[0], "split.count", 1) > 1 and len(given) == 1:
            given = part_paths(headers[0])
            if given[0] != headers[0].path:
                headers.pop().close()
                headers.append(Header(given[0], end_of_strings))
        headers.extend(Header(path, end_of_strings) for path in given[1:])
        return _in_order(headers)
    except BaseException:
        for header in headers:
            header.close()
        raise


def part_paths(part: Header) -> list[Path]:
    """The paths of all parts of the split model that `part` belongs to, by the naming pattern.

    Raises:
        GGUFError: the file is not named like a part, or a part does not exist.
    """
    count = _split_number(part, "split.count", 1)
    match = PART_NAME.fullmatch(part.path.name)
    if match is None or int(match["count"]) != count:
        number = _split_number(part, "split.no", 0) + 1
        raise GGUFError(
            f"{part.path}: this is part {number} of {count} of a split model, but the name does not tell where "
            f"the others are (expected <prefix>-{number:05d}-of-{count:05d}.gguf)",
            hint="rename the parts, or name all of them",
        )
    paths = [part.path.with_name(f"{match['prefix']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    for path in paths:
        if not path.exists():
            raise GGUFError(f"{path}: missing part of the split model {paths[0]}", hint=f"put {path.name} beside it")
    return paths


def _split_number(header: Header, key: str, default: int | None = None) -> int:
    value = header.metadata.get(key, default)
    if value is None:
        raise GGUFError(f"{header.path}: missing key {key!r}: not a part of a split model")
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise GGUFError(f"{header.path}: key {key!r} is {value!r}, expected a number of parts")
    return value


def _in_order(headers: list[Header]) -> list[Header]:
    if len(headers) == 1 and _split_number(headers[0], "split.count", 1) <= 1:
        return headers
    count = _split_number(headers[0], "split.count")
    parts: dict[int, Header] = {}
    for header in headers:
        number = _split_number(header, "split.no")
        _check_membership(header, number, headers[0], count)
        if number in parts:
            raise GGUFError(
                f"{header.path}: part {number + 1} of {count} is double: {parts[number].path} is it as well"
            )
        parts[number] = header
    missing = [str(i + 1) for i in range(count) if i not in parts]
    if missing:
        raise GGUFError(f"{headers[0].path}: part {', '.join(missing)} of {count} is missing")
    ordered = [parts[i] for i in range(count)]
    _check_tensors(ordered)
    return ordered


def _check_membership(header: Header, number: int, first: Header, count: int) -> None:
    if _split_number(header, "split.count") != count or number >= count:
        raise GGUFError(
            f"{header.path}: says it is part {number + 1} of {header.metadata['split.count']}, but {first.path} "
            f"is of a model in {count} parts: it belongs to another model"
        )
    key = "split.tensors.count"
    if header.metadata.get(key) != first.metadata.get(key):
        raise GGUFError(
            f"{header.path}: key {key!r} is {header.metadata.get(key)}, but {first.path} "
            f"has {first.metadata.get(key)}: it belongs to another model"
        )


def _check_tensors(ordered: list[Header]) -> None:
    seen: dict[str, Header] = {}
    for header in ordered:
        for name in header.tensors:
            if name in seen:
                raise GGUFError(
                    f"{header.path}: tensor {name!r} is in {seen[name].path} as well: it belongs to another model"
                )
            seen[name] = header
    total = _split_number(ordered[0], "split.tensors.count", len(seen))
    if total != len(seen):
        found = ", ".join(f"{header.path.name} {len(header.tensors)}" for header in ordered)
        raise GGUFError(f"{ordered[0].path}: the parts hold {len(seen)} tensors ({found}), expected {total}")
