"""How byte-pair vocabularies cut text into words before merging; one table, by the name in `tokenizer.ggml.pre`.

A family is a sequence of stages. Each stage cuts the pieces that the one before it left, and what lies between
two matches becomes a piece of its own. The patterns are those of the models' own `tokenizer.json` files, which
are what the vocabularies were trained with; names and flags are llama.cpp's (release b11434).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import regex  # type: ignore[import-untyped]

Stage = str | Callable[[str], list[str]]

TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased_words(contractions: str, upper: str = UPPER, lower: str = LOWER) -> str:
    before, after = r"[^\r\n\p{L}\p{N}]?", f"(?:{contractions})?" if contractions else ""
    return f"{before}{upper}*{lower}+{after}|{before}{upper}+{lower}*{after}"


def _o200k(contractions: str, digits: str) -> str:
    return _cased_words(contractions) + rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|" + TAIL


ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
CJK_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK3 = ASCII_PUNCTUATION + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + TAIL
DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z"
    r"\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    r"\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    r"\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    r"\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d"
    r"\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    r"\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    r"\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    r"\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    r"\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    r"\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    r"\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    r"]+"
)
DEEPSEEK_PUNCTUATION = r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
DEEPSEEK_CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def _digits_from_the_right(text: str, word_follows: bool = False) -> list[str]:
    """Cut each run of numbers into threes counted from its end (1234567 → 1 234 567), the rest untouched.

    With `word_follows`, a run that a letter follows directly is left alone, as the `\\b` of the pattern wants.
    """
    pieces = []
    end = 0
    for run in _NUMBERS.finditer(text):
        start, stop = run.span()
        if word_follows and _WORD.match(text, stop):
            continue
        if start > end:
            pieces.append(text[end:start])
        head = (stop - start) % 3
        if head:
            pieces.append(text[start : start + head])
        pieces.extend(text[i : i + 3] for i in range(start + head, stop, 3))
        end = stop
    if end < len(text):
        pieces.append(text[end:])
    return pieces


_NUMBERS = regex.compile(r"\p{Nd}+")
_WORD = regex.compile(r"\w")


def _metaspace_words(text: str) -> list[str]:
    """Start a word at every ▁, the first one included; runs of newlines stay as they are."""
    if not text.strip("\n"):
        return [text]
    return regex.findall(r"▁?[^▁]+|▁", text if text.startswith("▁") else "▁" + text)


@dataclass(frozen=True)
class PreTokenizer:
    """A family: its stages, and what else llama.cpp ties to its name.

    `ignore_merges`: a word that is a token is that token, whatever the merges say. `byte_level`: symbols are bytes in
    GPT-2's spelling; otherwise they are characters, spaces are ▁, and unknown ones are `<0x..>` tokens.
    """

    stages: tuple[Stage, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True

    def splitter(self) -> Callable[[str], list[str]]:
        """The function that cuts a text into words; their concatenation is the text."""
        stages = [_splitter(stage) if isinstance(stage, str) else stage for stage in self.stages]
        if len(stages) == 1:
            return stages[0]
        return functools.partial(_run_stages, stages)


def _run_stages(stages: Iterable[Callable[[str], list[str]]], text: str) -> list[str]:
    pieces = [text]
    for stage in stages:
        pieces = [part for piece in pieces for part in stage(piece)]
    return pieces


def _splitter(pattern: str) -> Callable[[str], list[str]]:
    compiled = regex.compile(pattern)

    def split(text: str) -> list[str]:
        found: list[str] = compiled.findall(text)
        return found if sum(map(len, found)) == len(text) else _with_gaps(compiled, text)

    return split


def _with_gaps(compiled: regex.Pattern[str], text: str) -> list[str]:
    pieces = []
    end = 0
    for match in compiled.finditer(text):
        if match.start() > end:
            pieces.append(text[end : match.start()])
        if match.group():
            pieces.append(match.group())
        end = match.end()
    if end < len(text):
        pieces.append(text[end:])
    return pieces


_LLAMA3 = PreTokenizer((LLAMA3,))
_LLAMA3_FLAGS = replace(_LLAMA3, ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((QWEN2,))
_GPT2 = PreTokenizer((GPT2,))
_STARCODER = PreTokenizer((r"\p{N}", GPT2))
_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", CJK_KANA, DEEPSEEK3))
_O200K = PreTokenizer((_o200k(CONTRACTIONS, r"\p{N}{1,3}"),))
_TINY_AYA = PreTokenizer((functools.partial(_digits_from_the_right, word_follows=True), *_O200K.stages))
_GEMMA4 = PreTokenizer((r"[^\n]+|\n+",), byte_level=False)
_BAILING = PreTokenizer(
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)
)
_BLOOM = PreTokenizer((r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+",))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        _LLAMA3_FLAGS,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("glm4", "glm5"), replace(_LLAMA3, ignore_merges=True)),
    **dict.fromkeys(
        (
            "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2",
        ),
        _QWEN2,
    ),
    "qwen35": PreTokenizer((QWEN35,)),
    **dict.fromkeys(
        (
            "gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code",
            "gigachat", "a.x-4.0", "mellum", "modern-bert", "roberta-bpe", "mpt", "olmo", "jais", "trillion",
            "granite-docling", "exaone4",
        ),
        _GPT2,
    ),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"), _STARCODER
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")),
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, r"\s+$", DEEPSEEK_CJK, r"\p{N}+")
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "spark2_5": PreTokenizer(
        (
            r"\p{N}{1,3}",
            CJK_KANA,
            ASCII_PUNCTUATION
            + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        )
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _O200K),
    "granite-embed-multi-97m": replace(_O200K, ignore_merges=True),
    "tekken": PreTokenizer((_o200k("", r"\p{N}"),), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _TINY_AYA),
    "kimi-k2": PreTokenizer(
        (
            r"(?V1)\p{Han}+|"
            + _cased_words(CONTRACTIONS, f"[{UPPER}--\\p{{Han}}]", f"[{LOWER}--\\p{{Han}}]")
            + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
            + TAIL,
        )
    ),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), replace(_GEMMA4, add_bos=True)),
    "sarvam-moe": _GEMMA4,
    "mmbert": replace(_GEMMA4, stages=(*_GEMMA4.stages, _metaspace_words)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    "seed-coder": PreTokenizer(
        (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + TAIL,)
    ),
    "ufakzeka": PreTokenizer((r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL,)),
    "afmoe": PreTokenizer(
        (
            _digits_from_the_right,
            r"[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
            r"\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
            DEEPSEEK3,
        )
    ),
    "laguna": PreTokenizer((r"[^\n]+|\n+", QWEN2)),
    "exaone-moe": PreTokenizer(
        (
            CONTRACTIONS
            + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|"
            + r"\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "minicpm5": PreTokenizer(
        (
            r"\p{N}{1,3}",
            CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL,
        ),
        ignore_merges=True,
    ),
    "youtu": PreTokenizer(
        (
            r"[\uac00-\ud7a3\u3131-\u318e]+|"
            r"[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|"
            + CJK_KANA,
            _o200k(CONTRACTIONS, r"\p{N}"),
        ),
        ignore_merges=True,
    ),
    "jais-2": PreTokenizer(
        (
            CONTRACTIONS
            + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
            + r"|\s{1,2}(?!\S)|\s{1}",
        )
    ),
    "superbpe": PreTokenizer((_digits_from_the_right,)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _BLOOM),
    "viking": PreTokenizer((*_BLOOM.stages, r"\p{N}")),
    "chameleon": PreTokenizer(
        (
            r"<sentinel:[0-9]+>",
            r"(?:IMGIMG)(?:(?:A|B|C|D|E|F|G|H|I){1,4})Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ),
        add_bos=True,
    ),
}  # fmt: skip
