"""Finds which pre-tokenizer family a tokenizer.json describes, by what it does to text; it knows no model's name.

The stages in the file are run as they are written, and so are those of each family; the first family that cuts all
probes alike, and treats merges alike, is the one. Names change and lists of hashes miss new models; this does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import regex  # type: ignore[import-untyped]

from localllm.convert.folder import Config
from localllm.errors import ConvertError
from localllm.tokenizer.pretokenizers import GPT2, PRE_TOKENIZERS, PreTokenizer

PREFERRED = ("llama-bpe", "qwen2", "smollm", "gpt-2", "gpt-4o", "tekken", "deepseek-v3", "default")
"""Of families that do the same, the names to take first."""

PROBES = (
    "Hello world! It's 3 o'clock, isn't it? I'LL say WE'VE won'T",
    "1234567890 12 345 6,789.01 0x1F a1b22c333 ½ ² Ⅷ ٣٤٥٦ 1a2",
    "tabs\tand\t\tmore \t x\n\nnew\n \n  lines\r\n\r\n   end   \n  x   ",
    " leading  two   three    four     five",
    "ünïcödé ÀÉÎ ñandú Straße ŒUVRE ﬁn e\u0301te\u0301 हिन्दी भाषा தமிழ் ไทย",
    "中文字符,日本語のテキスト。カタカナ 한국어 텍스트「」……",
    "camelCase HTTPServer snake_case XMLHttpRequest2 iPhone McDonald's",
    "a+b=c; x<=y>z ~^|`$ #include <x.h> //path/to/file\n/* c */ !!! ... ?!\n\n--- ___",
    "emoji 😀😃 👩‍👩‍👧 ❤️ → ∑∞ €5 £6.50 ©™",
    "'s 't 'RE 'Ve 'm 'll 'd ' 'sx \u2019s don\u2019t",
    "x\u00a0y\u2003z\u200bw \u3000 v\u0085u",
    "…а б в Привет МИР ёлка Ωμέγα שלום مرحبا",
)


def find_family(tokenizer: Config) -> str:
    """The name for tokenizer.ggml.pre of a tokenizer.json that works on bytes.

    Raises:
        ConvertError: it has a step that no family has, or cuts text as no family does.
    """
    described = PreTokenizer(tuple(_stages(tokenizer)))
    ignore_merges = bool(tokenizer.inner("model").flag("ignore_merges", False))
    try:
        cuts = [described.splitter()(probe) for probe in PROBES]
    except regex.error as error:
        raise _unsupported(tokenizer, f"a pattern that cannot be read: {error}") from error
    alike = [name for name, expected in _cuts_of_families().items() if expected == cuts]
    merging = [name for name in alike if PRE_TOKENIZERS[name].ignore_merges == ignore_merges]
    if not merging:
        families = f"; its words are those of {', '.join(alike[:3])}" if alike else ""
        raise _unsupported(tokenizer, f"expected one of {', '.join(PREFERRED)} or another known family{families}")
    return next((name for name in PREFERRED if name in merging), merging[0])


@functools.cache
def _cuts_of_families() -> dict[str, list[list[str]]]:
    families: dict[str, list[list[str]]] = {}
    for name, family in PRE_TOKENIZERS.items():
        if family.byte_level:
            families[name] = [family.splitter()(probe) for probe in PROBES]
    return families


def _unsupported(tokenizer: Config, what: str) -> ConvertError:
    return ConvertError(f"{tokenizer.path}: unsupported pre-tokenizer: {what}")


def _stages(tokenizer: Config) -> list[str | Callable[[str], list[str]]]:
    """The steps before merging, in the order of the file."""
    step = tokenizer.inner("pre_tokenizer")
    steps = step.objects("pretokenizers") if step.get("type") == "Sequence" else [step]
    return [stage for step in steps for stage in _stage(step)]


def _stage(step: Config) -> list[str | Callable[[str], list[str]]]:
    kind = step.get("type")
    if kind == "ByteLevel":
        if step.flag("add_prefix_space", True):
            raise step.error("add_prefix_space", True, "false")
        return [GPT2] if step.flag("use_regex", True) else []
    if kind == "Digits":
        return [r"\p{N}"] if step.flag("individual_digits", False) else [r"\p{N}+"]
    if kind == "Punctuation" and step.get("behavior", "Isolated") in ("Isolated", "Contiguous"):
        one = r"[\p{P}!-/:-@\[-`{-~]"
        return [one if step.get("behavior", "Isolated") == "Isolated" else f"{one}+"]
    if kind == "Split":
        return [_split(step)]
    raise _unsupported(step, f"{kind!r} is not known")


def _split(step: Config) -> str:
    pattern = step.inner("pattern")
    if "Regex" in pattern:
        expression = pattern.string("Regex")
    else:
        expression = regex.escape(pattern.string("String"), special_only=True)
    behavior, invert = step.get("behavior"), step.flag("invert", False)
    # With matches as the pieces, what is thrown away between them is nothing if the pattern leaves no gap.
    if behavior == "Isolated" or (behavior == "Removed" and invert):
        return expression
    raise _unsupported(step, f"behavior {behavior!r} of a split, expected 'Isolated'")
