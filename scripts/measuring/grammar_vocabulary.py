"""A vocabulary as engines of constrained output want it, from a GGUF or a `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localllm.gguf import open_gguf
from localllm.tokenizer import load_tokenizer

ENDS = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>", "<eos>")


@dataclass(frozen=True)
class Words:
    """`pieces`: the bytes of every token, none of control tokens. `texts`: how control tokens are spelled, by id, the
    end token among them. `encode`: a text's ids."""

    pieces: list[bytes]
    texts: dict[int, str]
    eos_id: int
    encode: Callable[[str], list[int]]

    @property
    def n_vocab(self) -> int:
        return len(self.pieces)

    @property
    def special_ids(self) -> list[int]:
        return [token for token in self.texts if token != self.eos_id]


def read_words(path: str | Path, eos: str | None = None) -> Words:
    """The vocabulary of a file. `eos` is the spelling of the end token, else the GGUF's, or one that is usual.

    Raises:
        ValueError: there is no such end token.
    """
    return _of_gguf(path, eos) if Path(path).suffix == ".gguf" else _of_json(path, eos)


def _of_gguf(path: str | Path, eos: str | None) -> Words:
    tokenizer = load_tokenizer(open_gguf(path))
    tokens = range(tokenizer.n_vocab)
    texts = {token: tokenizer.text(token) for token in tokens if tokenizer.is_control(token)}
    ends = [token for token, text in texts.items() if text == eos] if eos else sorted(tokenizer.eog_ids)
    if not ends:
        raise ValueError(f"no end token in {path}")
    pieces = [tokenizer.piece(token) for token in tokens]
    texts |= {end: tokenizer.text(end) for end in ends}
    return Words(pieces, texts, ends[0], lambda text: tokenizer.encode(text, add_special=False, parse_special=False))


def _of_json(path: str | Path, eos: str | None) -> Words:
    from tokenizers import Tokenizer

    text = Path(path).read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_str(text)
    added = {entry["id"]: entry["content"] for entry in json.loads(text)["added_tokens"]}
    ids = tokenizer.get_vocab(with_added_tokens=True)
    end = next((ids[name] for name in ([eos] if eos else ENDS) if name in ids), None)
    if end is None:
        raise ValueError(f"no end token in {path}: name it with --eos")
    pieces = [b""] * (max(ids.values()) + 1)
    bytes_of = {letter: byte for byte, letter in enumerate(_byte_letters())}
    for piece, token in ids.items():
        if token not in added:
            pieces[token] = bytes(bytes_of[letter] for letter in piece)
    return Words(pieces, added, end, lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids))


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary: its own if it can be seen, else the next one
    from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]
