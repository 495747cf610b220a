"""Faults that users met in other runners: split characters, lost blanks, byte tokens as text, BERT's normaliser."""

from __future__ import annotations

import locale
from collections.abc import Callable
from types import ModuleType

import pytest

from localllm.tokenizer import StreamDecoder, Tokenizer

MakeModel = Callable[..., Tokenizer]
TEXTS = [
    "a a", "é", "🦙\n", "  a", " a", "<0x0A>", "a !", " ?", "\t\ta", "a\r\n\r\na", "", "\u0000a", "e\u0301", "a\u00a0a",
]  # fmt: skip

SPM_IDS = {
    "a a": [259, 259],
    "é": [257, 196, 170],
    "🦙\n": [257, 241, 160, 167, 154, 11],
    "  a": [257, 257, 259],
    " a": [257, 259],
    "": [],
}
CASED = {"Hello WORLD": [1, 1], "Müller": [1]}
UNCASED = {"Hello WORLD": [4, 5], "Müller": [6, 7]}
EITHER = {
    "hello中文world": [4, 11, 12, 5],
    "unable": [9, 10],
    "hello\u00a0world\u200b": [4, 5],
    "qqq a": [1, 13],
    "helloo": [1],
    "Straße": [1],
    "hello\tworld\n": [4, 5],
    "": [],
}


class TestCharactersSplitOverTokens:
    PIECES = (b"\xf0", b"\x9f", b"\xa6", b"\x99", "щ", b"\xe4", b"\xbd", b"\xa0", "!")
    TEXT = "🦙щ你!"

    @pytest.fixture
    def tokenizer(self, model_tokenizer: MakeModel, tiny_models: ModuleType) -> Tokenizer:
        return model_tokenizer(tiny_models.script_model, list(self.PIECES))

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        raw = [piece if isinstance(piece, bytes) else piece.encode() for piece in self.PIECES]
        by_piece = {tokenizer.piece(token): token for token in range(tokenizer.n_vocab)}
        return [by_piece[piece] for piece in raw]

    def test_streamed_pieces_make_the_text(self, tokenizer: Tokenizer) -> None:
        decoder = StreamDecoder(tokenizer)
        streamed = [decoder.feed(token) for token in self.ids(tokenizer)]
        assert streamed == ["", "", "", "🦙", "щ", "", "", "你", "!"]
        assert "".join(streamed) + decoder.flush() == self.TEXT == tokenizer.decode(self.ids(tokenizer))

    @pytest.mark.parametrize(("n", "text"), [(2, ""), (4, "🦙"), (6, "🦙щ")])
    def test_cut_short(self, tokenizer: Tokenizer, n: int, text: str) -> None:
        decoder = StreamDecoder(tokenizer)
        streamed = "".join(decoder.feed(token) for token in self.ids(tokenizer)[:n])
        assert decoder.pending == {2: b"\xf0\x9f", 4: b"", 6: b"\xe4"}[n]
        assert streamed + decoder.flush() == text
        assert decoder.pending == b""

    def test_bytes_that_never_become_a_character(self, tokenizer: Tokenizer) -> None:
        ids = self.ids(tokenizer)
        decoder = StreamDecoder(tokenizer)
        assert [decoder.feed(token) for token in (ids[1], ids[0], ids[8])] == ["\ufffd", "", "\ufffd!"]


class TestRoundTrips:
    @pytest.mark.parametrize("text", TEXTS)
    def test_spm(self, model_tokenizer: MakeModel, tiny_models: ModuleType, text: str) -> None:
        tokenizer = model_tokenizer(tiny_models.spm_model)
        ids = tokenizer.encode(text, add_special=False)
        assert ids == SPM_IDS.get(text, ids)
        assert tokenizer.decode(ids) == text

    def test_spelled_byte_token_is_text(self, model_tokenizer: MakeModel, tiny_models: ModuleType) -> None:
        ids = model_tokenizer(tiny_models.spm_model).encode("<0x0A>", add_special=False)
        assert len(ids) == 7 and ids[0] == 257 and 11 not in ids

    def test_byte_tokens_stream_as_characters(self, model_tokenizer: MakeModel, tiny_models: ModuleType) -> None:
        decoder = StreamDecoder(model_tokenizer(tiny_models.spm_model))
        assert "".join(decoder.feed(token) for token in (241, 160, 167, 154)) == "🦙"

    @pytest.mark.parametrize("text", TEXTS)
    def test_bpe(self, model_tokenizer: MakeModel, tiny_models: ModuleType, text: str) -> None:
        tokenizer = model_tokenizer(tiny_models.random_model)
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_empty_text_is_no_tokens(self, model_tokenizer: MakeModel, tiny_models: ModuleType) -> None:
        tokenizer = model_tokenizer(tiny_models.spm_model)
        assert tokenizer.encode("") == [] and tokenizer.bos_id == 260
        assert tokenizer.decode([260]) == "" and tokenizer.decode([260, 259]) == "a"


class TestWordPiece:
    @pytest.mark.parametrize(("text", "ids"), (UNCASED | EITHER).items())
    def test_uncased(self, model_tokenizer: MakeModel, tiny_models: ModuleType, text: str, ids: list[int]) -> None:
        tokenizer = model_tokenizer(tiny_models.bert_model)
        assert tokenizer.encode(text, add_special=False) == ids
        assert tokenizer.encode(text) == [2, *ids, 3]

    @pytest.mark.parametrize(("text", "ids"), (CASED | EITHER).items())
    def test_cased(self, model_tokenizer: MakeModel, tiny_models: ModuleType, text: str, ids: list[int]) -> None:
        over = [("tokenizer.ggml.normalizer.lowercase", tiny_models.BOOL, False)]
        assert model_tokenizer(tiny_models.bert_model, over=over).encode(text, add_special=False) == ids

    def test_accents_can_be_stripped_without_lower_case(
        self, model_tokenizer: MakeModel, tiny_models: ModuleType
    ) -> None:
        over = [
            ("tokenizer.ggml.normalizer.lowercase", tiny_models.BOOL, False),
            ("tokenizer.ggml.normalizer.strip_accents", tiny_models.BOOL, True),
        ]
        tokenizer = model_tokenizer(tiny_models.bert_model, over=over)
        assert tokenizer.encode("müller Müller", add_special=False) == [6, 7, 1]

    @pytest.mark.parametrize("name", ["C", "tr_TR.UTF-8"])
    def test_locale_changes_nothing(self, model_tokenizer: MakeModel, tiny_models: ModuleType, name: str) -> None:
        before = locale.setlocale(locale.LC_ALL)
        try:
            locale.setlocale(locale.LC_ALL, name)
        except locale.Error:
            pytest.skip(f"no locale {name} on this system")
        try:
            assert model_tokenizer(tiny_models.bert_model).encode("HELLO", add_special=False) == [4]
        finally:
            locale.setlocale(locale.LC_ALL, before)

    def test_pieces(self, model_tokenizer: MakeModel, tiny_models: ModuleType) -> None:
        tokenizer = model_tokenizer(tiny_models.bert_model)
        assert tokenizer.piece(4) == b" hello" and tokenizer.piece(7) == b"er" and tokenizer.piece(2) == b""
