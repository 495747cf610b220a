"""Vocabularies by kind: byte-level BPE, SentencePiece's BPE and WordPiece, from any of the files that hold them."""

from __future__ import annotations

import re
from typing import Any

from localllm.convert.folder import Config, Folder
from localllm.convert.vocabulary.pre import find_family
from localllm.convert.vocabulary.sentencepiece import read_sentencepiece
from localllm.convert.vocabulary.tokens import BYTE, CONTROL, NORMAL, UNKNOWN, Vocabulary, by_id
from localllm.errors import ConvertError

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
WORD = "\u2581"
UNMERGED_SCORE = -1e6
"""Of tokens that no merge gives: they are never made of others."""


def read_model(folder: Folder, arch: str) -> Vocabulary:
    """The vocabulary of a folder, without added tokens. `arch` tells the pre-tokenizer where no file does.

    Raises:
        ConvertError: there is none, or of a kind that is not supported.
    """
    tokenizer = folder.json("tokenizer.json")
    if tokenizer.values:
        return _of_tokenizer_json(folder, tokenizer)
    if (raw := folder.raw("tokenizer.model")) is not None:
        return _of_sentencepiece(folder, raw)
    if folder.has("vocab.json") and folder.has("merges.txt"):
        return _of_vocab_and_merges(folder, arch)
    if (text := folder.text("vocab.txt")) is not None:
        return _of_vocab_txt(folder, text)
    hint = "tekken.json is not read: take a repository that has a tokenizer.json" if folder.has("tekken.json") else None
    raise ConvertError(
        f"{folder.path}: no tokenizer found, expected tokenizer.json, tokenizer.model, vocab.json with merges.txt, "
        "or vocab.txt",
        hint=hint,
    )


def _of_tokenizer_json(folder: Folder, tokenizer: Config) -> Vocabulary:
    model = tokenizer.inner("model")
    kind = model.string("type", default="BPE" if "merges" in model else "")
    if kind == "WordPiece":
        return _word_pieces(folder, tokenizer, model)
    if kind != "BPE":
        raise ConvertError(f"{tokenizer.path}: unsupported tokenizer: {kind!r}, expected BPE or WordPiece")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise model.error(key, model.get(key), "none")
    if _is_byte_level(tokenizer):
        return _byte_level(tokenizer, model)
    raw = folder.raw("tokenizer.model")
    return _spm_like(tokenizer, model) if raw is None else _of_sentencepiece(folder, raw)


def _steps(tokenizer: Config, key: str, inner: str) -> list[Config]:
    step = tokenizer.inner(key)
    if not step.values:
        return []
    return step.objects(inner) if step.get("type") == "Sequence" else [step]


def _is_byte_level(tokenizer: Config) -> bool:
    steps = _steps(tokenizer, "pre_tokenizer", "pretokenizers")
    steps += _steps(tokenizer, "decoder", "decoders")
    return any(step.get("type") == "ByteLevel" for step in steps)


def _byte_level(tokenizer: Config, model: Config) -> Vocabulary:
    for step in _steps(tokenizer, "normalizer", "normalizers"):
        if step.get("type") != "NFC":  # GGUF has no place for it: text is expected to be composed, as it mostly is
            raise tokenizer.error("normalizer", step.get("type"), "NFC or none")
    tokens = by_id(model, model.inner("vocab").values)  # type: ignore[arg-type]
    return Vocabulary(
        "gpt2",
        tokens,
        [NORMAL] * len(tokens),
        merges=_merges(model),
        flags={"pre": find_family(tokenizer)},
        unknown=model.get("unk_token"),
    )


def _merges(model: Config) -> list[str]:
    """Pairs with a space between; a space inside of one is spelled as byte-level vocabularies do."""
    merges = model.get("merges", [])
    if not isinstance(merges, list):
        raise model.error("merges", merges, "a list of pairs")
    found = []
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) and part for part in pair):
            raise model.error("merges", merge, "a pair of tokens")
        found.append(" ".join(part.replace(" ", "\u0120") for part in pair))
    return found


def _spm_like(tokenizer: Config, model: Config) -> Vocabulary:
    """A SentencePiece model that was saved as BPE: scores are made of the merges' ranks, which were made of scores."""
    if not model.flag("byte_fallback", False):
        raise model.error("byte_fallback", model.get("byte_fallback"), "true, for a BPE that is not byte-level")
    tokens = by_id(model, model.inner("vocab").values)  # type: ignore[arg-type]
    scores = dict.fromkeys(tokens, UNMERGED_SCORE)
    for rank, merge in reversed(list(enumerate(_merges(model)))):
        scores[merge.replace(" ", "", 1)] = -float(rank)
    unknown = model.get("unk_token")
    return Vocabulary(
        "llama",
        tokens,
        [_kind_of_piece(token, unknown) for token in tokens],
        scores=[scores[token] for token in tokens],
        flags={"add_space_prefix": _has_space_prefix(tokenizer)},
        unknown=unknown,
    )


def _kind_of_piece(token: str, unknown: str | None) -> int:
    if token == unknown:
        return UNKNOWN
    return BYTE if _BYTE_TOKEN.fullmatch(token) else NORMAL


def _has_space_prefix(tokenizer: Config) -> bool:
    prefix = False
    for step in _steps(tokenizer, "normalizer", "normalizers"):
        kind = step.get("type")
        if kind == "Prepend" and step.get("prepend") == WORD:
            prefix = True
        elif kind != "Replace" or step.inner("pattern").values != {"String": " "} or step.get("content") != WORD:
            raise tokenizer.error("normalizer", step.values, f"spaces replaced by {WORD}")
    for step in _steps(tokenizer, "pre_tokenizer", "pretokenizers"):
        kind = step.get("type")
        if kind == "Metaspace":
            scheme = step.get("prepend_scheme", "always" if step.flag("add_prefix_space", True) else "never")
            prefix = prefix or scheme != "never"
        elif kind != "Split" or step.inner("pattern").values != {"String": " "}:
            raise tokenizer.error("pre_tokenizer", kind, "Metaspace or none")
    return prefix


def _of_sentencepiece(folder: Folder, raw: bytes) -> Vocabulary:
    pieces = read_sentencepiece(raw, folder.path / "tokenizer.model")
    prefix = folder.json("tokenizer_config.json").flag("add_prefix_space", pieces.add_space_prefix)
    unknown = next((t for t, kind in zip(pieces.tokens, pieces.types, strict=True) if kind == UNKNOWN), None)
    flags = {"add_space_prefix": bool(prefix)}
    return Vocabulary(
        "llama",
        pieces.tokens,
        pieces.types,
        scores=pieces.scores,
        flags=dict(flags),
        unknown=unknown,
        roles=pieces.roles,
    )


def _of_vocab_and_merges(folder: Folder, arch: str) -> Vocabulary:
    """GPT-2's files, which do not say how text is cut: Qwen has its own way, all others that are run have GPT-2's."""
    vocab = folder.json("vocab.json")
    lines = (folder.text("merges.txt") or "").split("\n")
    merges: list[Any] = [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")]
    tokens = by_id(vocab, dict(vocab.values))
    pre = "qwen2" if arch.startswith("qwen") else "gpt-2"
    model = Config(folder.path / "merges.txt", {"merges": merges})
    return Vocabulary("gpt2", tokens, [NORMAL] * len(tokens), merges=_merges(model), flags={"pre": pre})


def _word_pieces(folder: Folder, tokenizer: Config, model: Config) -> Vocabulary:
    words = by_id(model, model.inner("vocab").values)  # type: ignore[arg-type]
    if model.get("continuing_subword_prefix", "##") != "##":
        raise model.error("continuing_subword_prefix", model.get("continuing_subword_prefix"), "##")
    normalizer = tokenizer.inner("normalizer")
    if normalizer.get("type") != "BertNormalizer" or not normalizer.flag("handle_chinese_chars", True):
        raise tokenizer.error("normalizer", normalizer.values, "a BertNormalizer that cuts out Chinese characters")
    lowercase = bool(normalizer.flag("lowercase", True))
    accents = normalizer.flag("strip_accents", lowercase)
    return _bert(words, lowercase, bool(accents), model.string("unk_token", default="[UNK]"))


def _of_vocab_txt(folder: Folder, text: str) -> Vocabulary:
    words = text.rstrip("\n").split("\n")
    settings = folder.json("tokenizer_config.json")
    lowercase = bool(settings.flag("do_lower_case", True))
    if not settings.flag("tokenize_chinese_chars", True):
        raise settings.error("tokenize_chinese_chars", False, "true")
    accents = settings.flag("strip_accents", lowercase)
    return _bert([word.rstrip("\r") for word in words], lowercase, bool(accents), "[UNK]")


def _bert(words: list[str], lowercase: bool, strip_accents: bool, unknown: str) -> Vocabulary:
    return Vocabulary(
        "bert",
        [_spelled(word) for word in words],
        [CONTROL if _is_bracketed(word) and not word.startswith("[unused") else NORMAL for word in words],
        flags={"normalizer.lowercase": lowercase, "normalizer.strip_accents": strip_accents},
        unknown=unknown,
    )


def _is_bracketed(word: str) -> bool:
    return len(word) > 2 and word.startswith("[") and word.endswith("]")


def _spelled(word: str) -> str:
    """Pieces that begin a word carry a mark, those that go on lose theirs."""
    if _is_bracketed(word):
        return word
    return word[2:] if word.startswith("##") else WORD + word
