"""A vocabulary on its way into a GGUF, and the tokens that are added to what a tokenizer was trained with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from localllm.convert.folder import Config, Folder
from localllm.errors import ConvertError
from localllm.gguf.types import ValueType
from localllm.gguf.writer import MetadataValue, Typed

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
ADDED_SCORE = -1000.0
MAX_TOKENS = 1 << 24
PREFIX = "tokenizer.ggml."

_LOOK_SPECIAL = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


@dataclass
class Vocabulary:
    """Tokens by id, with their types; `scores` and `merges` where the kind of model has them.

    `model` is the GGUF's name of the kind (gpt2, llama, bert), `flags` more keys under tokenizer.ggml., `roles` the ids
    of bos and eos where the vocabulary itself says them.
    """

    model: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    flags: dict[str, MetadataValue] = field(default_factory=dict)
    unknown: str | None = None
    roles: dict[str, int] = field(default_factory=dict)

    def put(self, token: int, text: str, kind: int) -> None:
        """Set a token, beyond the end too; ids between get texts that occur nowhere."""
        self.extend(token + 1)
        self.tokens[token], self.types[token] = text, kind

    def extend(self, n: int) -> None:
        """Have at least `n` tokens."""
        for token in range(len(self.tokens), n):
            self.tokens.append(f"[PAD{token}]")
            self.types.append(UNUSED)
            if self.scores is not None:
                self.scores.append(ADDED_SCORE)

    def cut(self, n: int) -> None:
        """Have at most `n` tokens: those that the model has no row for cannot occur."""
        del self.tokens[n:], self.types[n:]
        if self.scores is not None:
            del self.scores[n:]

    def find(self, text: str) -> int | None:
        """The id of a token; of several alike, the first."""
        return self.tokens.index(text) if text in self.tokens else None

    def metadata(self) -> dict[str, MetadataValue]:
        """The keys of a GGUF."""
        found: dict[str, MetadataValue] = {f"{PREFIX}model": self.model}
        found |= {PREFIX + key: value for key, value in self.flags.items()}
        found[f"{PREFIX}tokens"] = Typed(ValueType.STRING, self.tokens)
        if self.scores is not None:
            found[f"{PREFIX}scores"] = Typed(ValueType.FLOAT32, self.scores)
        found[f"{PREFIX}token_type"] = Typed(ValueType.INT32, self.types)
        if self.merges is not None:
            found[f"{PREFIX}merges"] = Typed(ValueType.STRING, self.merges)
        return found


def by_id(config: Config, vocab: dict[str, object]) -> list[str]:
    """The tokens of a mapping from text to id; ids that have none get texts that occur nowhere.

    Raises:
        ConvertError: an id is no number, out of bounds, or double.
    """
    tokens: dict[int, str] = {}
    for text, token in vocab.items():
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < MAX_TOKENS:
            raise config.error(text, token, f"an id in 0..{MAX_TOKENS - 1}")
        if token in tokens:
            raise config.error(text, token, f"an id of its own: {tokens[token]!r} has it")
        tokens[token] = text
    if not tokens:
        raise ConvertError(f"{config.path}: the vocabulary is empty")
    if max(tokens) > 2 * len(tokens) + 1024:
        raise ConvertError(f"{config.path}: {len(tokens)} tokens with ids up to {max(tokens)}")
    return [tokens.get(token, f"[PAD{token}]") for token in range(max(tokens) + 1)]


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in a text before anything else. `special` ones are never part of a text."""

    token: int
    text: str
    special: bool

    @property
    def kind(self) -> int:
        """The type: what is special, or looks so, is a control token."""
        looks = any(self.text.startswith(first) and self.text.endswith(last) for first, last in _LOOK_SPECIAL)
        return CONTROL if self.special or looks else USER_DEFINED


def added_tokens(folder: Folder) -> list[AddedToken]:
    """All added tokens that tokenizer.json, added_tokens.json and tokenizer_config.json name.

    Raises:
        ConvertError: one has no id or no text.
    """
    found = {added.token: added for added in _added(folder)}
    return [found[token] for token in sorted(found)]


def _added(folder: Folder) -> Iterator[AddedToken]:
    listed = folder.json("added_tokens.json")
    for text in listed.values:
        yield AddedToken(listed.integer(text, high=MAX_TOKENS), text, False)
    settings = folder.json("tokenizer_config.json").inner("added_tokens_decoder")
    for key in settings.values:
        if not key.isdecimal() or len(key) > 9:
            raise settings.error(key, key, "the id of a token")
        entry = settings.inner(key)
        yield AddedToken(int(key), entry.string("content"), bool(entry.flag("special", False)))
    for entry in folder.json("tokenizer.json").objects("added_tokens"):
        token = entry.integer("id", high=MAX_TOKENS)
        yield AddedToken(token, entry.string("content"), bool(entry.flag("special", False)))
