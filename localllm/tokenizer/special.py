"""Which tokens are special, by metadata and, since files leave much unsaid, by text; it does not tokenise.

Ids and rules are llama.cpp's, release b11434.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from localllm.gguf.file import GGUFFile

logger = logging.getLogger(__name__)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

Find = Callable[[bytes], int | None]
TokenTypes = npt.NDArray[np.int32]


@dataclass
class SpecialTokens:
    """Ids of the tokens with a role, None where the vocabulary has no such token."""

    bos: int | None = None
    eos: int | None = None
    eot: int | None = None
    eom: int | None = None
    unk: int | None = None
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_pad: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None
    eog: set[int] = field(default_factory=set)


# Role -> keys under tokenizer.ggml. ; of several present, the last one counts.
_KEYS = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id",),  # the spelling of the format
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}

DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "gpt2": {},  # llama.cpp says 11, which is a comma in most vocabularies
    "gemma4": {},
}

_TEXTS = {
    "eot": (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
        "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip

_EOG_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip

# gpt-oss writes its channels with these; hiding them would hide the structure of its answers.
_ALWAYS_VISIBLE = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


def find_special_tokens(f: GGUFFile, model: str, find: Find, types: TokenTypes) -> SpecialTokens:
    """Collect the special tokens of a vocabulary. `types` is corrected in place where a text shows it to be wrong."""
    special = SpecialTokens()
    for role, keys in _KEYS.items():
        setattr(special, role, _by_metadata(f, keys, DEFAULTS[model].get(role), len(types)))
    for role, texts in _TEXTS.items():
        if getattr(special, role) is None:
            setattr(special, role, _by_text(texts, find, types))
    special.eog = _end_of_generation(special, find, types)
    return special


def _by_metadata(f: GGUFFile, keys: tuple[str, ...], default: int | None, n_vocab: int) -> int | None:
    found = default if default is not None and default < n_vocab else None
    for key in keys:
        value = f.get(f"tokenizer.ggml.{key}", int, default=None)
        if value is None:
            continue
        if 0 <= value < n_vocab:
            found = value
        elif value not in (-1, 2**32 - 1):
            logger.warning(
                "%s: tokenizer.ggml.%s is %d, outside the vocabulary of %d; ignored", f.path, key, value, n_vocab
            )
    return found


def _by_text(texts: tuple[str, ...], find: Find, types: TokenTypes) -> int | None:
    for text in texts:
        token = find(text.encode())
        if token is not None:
            types[token] = CONTROL
            return token
    return None


def _end_of_generation(special: SpecialTokens, find: Find, types: TokenTypes) -> set[int]:
    found = {text: token for text in _EOG_TEXTS if (token := find(text.encode())) is not None}
    for token in found.values():
        types[token] = CONTROL
    for text in _ALWAYS_VISIBLE:
        if (token := find(text.encode())) is not None:
            types[token] = USER_DEFINED
    roles = (special.fim_pad, special.fim_rep, special.fim_sep, special.eos, special.eot, special.eom)
    eog = set(found.values()) | {token for token in roles if token is not None}
    calls = "<|call|>" in found or "<|calls|>" in found
    if "<|end|>" in found and calls and ("<|return|>" in found or "<|flush|>" in found):
        _take_back(eog, found["<|end|>"], USER_DEFINED, types)  # there it ends a message, not the turn
    if "</s>" in found and ("<|tool_response>" in found or find(b"<|plamo:eos|>") in eog):
        _take_back(eog, found["</s>"], NORMAL, types)  # there it is an HTML tag
    return eog


def _take_back(eog: set[int], token: int, kind: int, types: TokenTypes) -> None:
    eog.discard(token)
    types[token] = kind
