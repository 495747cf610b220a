"""Engines of constrained output behind one interface: ours, and those of other projects where they are installed."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from measuring.grammar_vocabulary import Words

Mask = npt.NDArray[np.int32]


class Matcher(Protocol):
    """One text on its way."""

    def mask(self) -> Mask:
        """Which tokens may follow: bit t % 32 of word t // 32. It may be the same array each time."""

    def accept(self, token: int) -> bool:
        """Take a token; False where it does not fit."""


class Compiled(Protocol):
    """A schema ready for use."""

    def matcher(self) -> Matcher: ...


class Engine(Protocol):
    """One side of the comparison."""

    def compile(self, schema: str) -> Compiled:
        """From a schema's JSON text.

        Raises:
            RefusedError: the engine says that it cannot.
        """


class RefusedError(Exception):
    """An engine does not take a schema, and says why."""


class Ours:
    """localllm."""

    def __init__(self, words: Words, whitespace: str) -> None:
        from localllm.grammar.vocabulary import Vocabulary

        self._words, self._whitespace = words, whitespace
        self._vocabulary = Vocabulary(words.pieces, [words.eos_id], words.special_ids)

    def compile(self, schema: str) -> Compiled:
        from localllm.grammar.constraint import Constraint
        from localllm.grammar.errors import ConstraintError, UnsupportedSchemaError
        from localllm.grammar.schema import compile_schema

        whitespace: Any = self._whitespace
        try:
            constraint = Constraint(compile_schema(schema, whitespace=whitespace).grammar, self._vocabulary)
        except UnsupportedSchemaError as error:
            raise RefusedError(f"{error.keyword}: {error}") from error
        except ConstraintError as error:
            raise RefusedError(str(error)) from error
        return _OurConstraint(constraint, self._words.n_vocab)


class _OurConstraint:
    def __init__(self, constraint: Any, n_vocab: int) -> None:
        self._constraint, self._n_words = constraint, (n_vocab + 31) // 32

    def matcher(self) -> Matcher:
        return _OurMatcher(self._constraint.matcher(), self._n_words)


class _OurMatcher:
    def __init__(self, matcher: Any, n_words: int) -> None:
        self._matcher = matcher
        self._words = np.zeros(n_words, np.uint32)

    def mask(self) -> Mask:
        self._matcher.fill_mask(self._words)
        return self._words.view(np.int32)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept(token))


class LLGuidance:
    """llguidance, as its defaults are: any whitespace, declared order."""

    def __init__(self, words: Words, whitespace: str) -> None:
        llguidance: Any = import_module("llguidance")
        self._matcher = llguidance.LLMatcher
        wrapper = llguidance.TokenizerWrapper(_Tokens(words))
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=words.n_vocab, eos_token=words.eos_id)

    def compile(self, schema: str) -> Compiled:
        matcher = self._matcher(self._tokenizer, self._matcher.grammar_from_json_schema(schema), log_level=0)
        if matcher.is_error():
            raise RefusedError(matcher.get_error())
        return _LLGuidanceGrammar(matcher, (self._tokenizer.vocab_size + 31) // 32)


class _Tokens:
    """What llguidance asks a tokenizer for; control tokens are marked by a byte 0xFF before their names."""

    def __init__(self, words: Words) -> None:
        self.eos_token_id, self.bos_token_id = words.eos_id, None
        self.tokens = [
            b"\xff" + words.texts[token].encode() if token in words.texts else piece
            for token, piece in enumerate(words.pieces)
        ]
        self.special_token_ids = sorted(words.texts)
        self._encode = words.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


class _LLGuidanceGrammar:
    def __init__(self, matcher: Any, n_words: int) -> None:
        self._first, self._n_words = matcher, n_words

    def matcher(self) -> Matcher:
        return _LLGuidanceMatcher(self._first.deep_copy(), self._n_words)


class _LLGuidanceMatcher:
    def __init__(self, matcher: Any, n_words: int) -> None:
        self._matcher = matcher
        self._words = np.zeros(n_words, np.int32)
        self._place = self._words.ctypes.data, self._words.nbytes

    def mask(self) -> Mask:
        self._matcher.unsafe_compute_mask_ptr(*self._place)
        return self._words

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))


class XGrammar:
    """XGrammar: any whitespace, undeclared properties as the schema says, one thread, no cache of schemas."""

    def __init__(self, words: Words, whitespace: str) -> None:
        import_module("torch").set_num_threads(1)
        xgrammar: Any = import_module("xgrammar")
        self._xgrammar, self._n_vocab = xgrammar, words.n_vocab
        tokens = xgrammar.TokenizerInfo(
            words.pieces, vocab_type=xgrammar.VocabType.RAW, vocab_size=words.n_vocab, stop_token_ids=[words.eos_id]
        )
        self._compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)

    def compile(self, schema: str) -> Compiled:
        try:
            compiled = self._compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)
        except (RuntimeError, ValueError) as error:
            raise RefusedError(str(error)) from error
        return _XGrammarGrammar(self._xgrammar, compiled, self._n_vocab)


class _XGrammarGrammar:
    def __init__(self, xgrammar: Any, compiled: Any, n_vocab: int) -> None:
        self._xgrammar, self._compiled, self._n_vocab = xgrammar, compiled, n_vocab

    def matcher(self) -> Matcher:
        bits = self._xgrammar.allocate_token_bitmask(1, self._n_vocab)
        return _XGrammarMatcher(self._xgrammar.GrammarMatcher(self._compiled), bits)


class _XGrammarMatcher:
    def __init__(self, matcher: Any, bits: Any) -> None:
        self._matcher, self._bits, self._words = matcher, bits, bits.numpy()[0]

    def mask(self) -> Mask:
        if not self._matcher.fill_next_token_bitmask(self._bits):
            self._bits.fill_(-1)  # everything may follow, and nothing was written
        words: Mask = self._words
        return words

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))


ENGINES: dict[str, tuple[type[Any], str]] = {
    "localllm": (Ours, "localllm"),
    "llguidance": (LLGuidance, "llguidance"),
    "xgrammar": (XGrammar, "xgrammar"),
}


def make_engine(name: str, words: Words, whitespace: str) -> tuple[Engine, str]:
    """The engine of a name, and its version.

    Raises:
        ImportError: its package is not installed.
    """
    cls, package = ENGINES[name]
    return cls(words, whitespace), version(package)
