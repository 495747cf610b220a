"""Special tokens: what matches in text, what is shown, what ends a generation."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from localllm.errors import TokenizerError, UnsupportedModelError
from localllm.tokenizer import Tokenizer
from localllm.tokenizer.bpe import BYTE_SPELLING
from localllm.tokenizer.partition import SpecialPartition

Make = Callable[..., Tokenizer]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTES = ["<unk>", *(f"<0x{b:02X}>" for b in range(256))]
BYTE_TYPES = [UNKNOWN] + [BYTE] * 256


def bpe(make: Make, specials: dict[str, int], **metadata: object) -> tuple[Tokenizer, dict[str, int]]:
    """All single bytes, then the given special tokens with their types."""
    tokenizer = make([*BYTE_SPELLING, *specials], [NORMAL] * 256 + [*specials.values()], **metadata)
    return tokenizer, {text: 256 + i for i, text in enumerate(specials)}


def spm(make: Make, pieces: dict[str, tuple[int, float]], **metadata: object) -> tuple[Tokenizer, dict[str, int]]:
    types, scores = zip(*pieces.values(), strict=True)
    tokenizer = make(
        [*BYTES, *pieces], [*BYTE_TYPES, *types], scores=[0.0] * 257 + list(scores), **{"model": "llama"} | metadata
    )
    return tokenizer, {text: 257 + i for i, text in enumerate(pieces)}


class TestMatching:
    def test_control_only_when_parsed_and_user_defined_always(self, make_tokenizer: Make) -> None:
        tokenizer, ids = bpe(make_tokenizer, {"<|im_start|>": CONTROL, "<tool_call>": USER_DEFINED})
        text = "<|im_start|>x<tool_call>"
        parsed = tokenizer.encode(text, parse_special=True)
        assert (parsed[0], parsed[-1], len(parsed)) == (ids["<|im_start|>"], ids["<tool_call>"], 3)
        plain = tokenizer.encode(text, parse_special=False)
        assert plain[-1] == ids["<tool_call>"] and ids["<|im_start|>"] not in plain and len(plain) == 12 + 1 + 1
        assert tokenizer.decode(plain) == text

    def test_control_text_never_becomes_control_by_merging(self, make_tokenizer: Make) -> None:
        pieces = {"▁": (NORMAL, -9.0), "<s": (NORMAL, -1.0), "<s>": (CONTROL, 0.0), "s>": (NORMAL, -2.0)}
        tokenizer, ids = spm(make_tokenizer, pieces, add_space_prefix=False)
        assert ids["<s>"] not in tokenizer.encode("<s>", add_special=False, parse_special=False)
        assert tokenizer.encode("<s>", add_special=False, parse_special=True) == [ids["<s>"]]

    def test_longest_first(self, make_tokenizer: Make) -> None:
        tokenizer, ids = bpe(make_tokenizer, {"<a>": CONTROL, "<a><b>": CONTROL, "<b>": CONTROL})
        assert tokenizer.encode("<a><b><a>") == [ids["<a><b>"], ids["<a>"]]

    def test_longest_anywhere_wins_over_an_earlier_short_one(self) -> None:
        partition = SpecialPartition({1: "ab", 2: "bcd"}, hidden=[])
        assert partition.split("xabcd", parse_special=False) == ["xa", 2]

    def test_single_characters_and_newlines(self) -> None:
        partition = SpecialPartition({1: "\n", 2: "\n\n", 3: "x"}, hidden=[3])
        assert partition.split("a\n\n\nbx", parse_special=False) == ["a", 2, 1, "bx"]
        assert partition.split("bx", parse_special=True) == ["b", 3]
        assert partition.split("", parse_special=True) == []

    def test_no_specials(self) -> None:
        assert SpecialPartition({}, []).split("text", parse_special=True) == ["text"]

    def test_strip(self) -> None:
        partition = SpecialPartition({1: "<l>", 2: "<r>"}, hidden=[], lstrip=[1], rstrip=[2])
        assert partition.split("a \n<l> b <r> \t\nc", parse_special=False) == ["a", 1, " b ", 2, "c"]
        assert partition.split("  <l><r>  ", parse_special=False) == [1, 2]

    def test_phi3_swallows_space_after_a_special_token(self, make_tokenizer: Make) -> None:
        pieces = {"▁": (NORMAL, -1.0), "<|end|>": (CONTROL, 0.0), "<|endoftext|>": (CONTROL, 0.0)}
        tokenizer, ids = spm(make_tokenizer, pieces, general_name="Phi-3 mini", add_space_prefix=False)
        assert tokenizer.encode("<|end|>\n ", add_special=False) == [ids["<|end|>"]]
        assert tokenizer.encode("<|endoftext|> ", add_special=False) == [ids["<|endoftext|>"], ids["▁"]]


SPACED = {"▁": (NORMAL, -3.0), "a": (NORMAL, -2.0), "▁a": (NORMAL, -1.0), "<x>": (CONTROL, 0.0)}


class TestSpacePrefix:
    def test_before_the_first_text_and_after_a_special_token(self, make_tokenizer: Make) -> None:
        tokenizer, ids = spm(make_tokenizer, SPACED)
        assert tokenizer.encode("aa<x>a<x>", add_special=False) == [
            ids["▁a"], ids["a"], ids["<x>"], ids["▁a"], ids["<x>"],
        ]  # fmt: skip

    def test_off(self, make_tokenizer: Make) -> None:
        tokenizer, ids = spm(make_tokenizer, SPACED, add_space_prefix=False)
        assert tokenizer.encode("a<x>a", add_special=False) == [ids["a"], ids["<x>"], ids["a"]]
        assert tokenizer.decode([ids["▁a"]]) == " a"

    def test_one_space_is_removed_from_the_first_text(self, make_tokenizer: Make) -> None:
        tokenizer, ids = spm(make_tokenizer, SPACED, bos_token_id=260)
        assert tokenizer.decode([260, ids["▁a"], ids["▁a"]]) == "a a"
        assert tokenizer.decode([260, ids["▁"], ids["▁a"]]) == " a"


class TestBeginAndEnd:
    def test_metadata_decides(self, make_tokenizer: Make) -> None:
        specials = {"<b>": CONTROL, "<e>": CONTROL}
        ids = {"bos_token_id": 256, "eos_token_id": 257}
        tokenizer, _ = bpe(make_tokenizer, specials, add_bos_token=True, add_eos_token=True, **ids)
        assert tokenizer.encode("") == [256, 257] and tokenizer.encode("", add_special=False) == []
        assert tokenizer.encode("<b>") == [256, 256, 257], "a second BOS is the caller's affair"
        plain, _ = bpe(make_tokenizer, specials, **ids)
        assert (plain.add_bos, plain.add_eos, plain.encode("")) == (False, False, [])

    @pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)])
    def test_default_goes_by_pre_tokenizer(self, make_tokenizer: Make, pre: str, adds: bool) -> None:
        tokenizer, _ = bpe(make_tokenizer, {"<b>": CONTROL}, pre=pre, bos_token_id=256)
        assert tokenizer.add_bos is adds

    def test_no_bos_is_invented(self, make_tokenizer: Make) -> None:
        tokenizer, _ = bpe(make_tokenizer, {"<b>": CONTROL}, add_bos_token=True)
        assert tokenizer.bos_id is None and tokenizer.encode("") == []

    def test_id_outside_the_vocabulary_is_ignored(self, make_tokenizer: Make, caplog: pytest.LogCaptureFixture) -> None:
        tokenizer, _ = bpe(make_tokenizer, {"<b>": CONTROL}, bos_token_id=9999)
        assert tokenizer.bos_id is None and "bos_token_id is 9999" in caplog.text

    def test_spm_defaults(self, make_tokenizer: Make) -> None:
        tokenizer, _ = spm(make_tokenizer, {"▁": (NORMAL, 0.0)})
        assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.special.unk, tokenizer.add_bos) == (1, 2, 0, True)


class TestEndOfGeneration:
    @pytest.mark.parametrize("text", ["<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "[EOS]"])
    def test_found_by_text_whatever_the_metadata_say(self, make_tokenizer: Make, text: str) -> None:
        tokenizer, ids = bpe(make_tokenizer, {"<e>": CONTROL, text: USER_DEFINED}, eos_token_id=256)
        assert tokenizer.eog_ids == {256, ids[text]}
        assert tokenizer.is_control(ids[text]) and tokenizer.piece(ids[text]) == b""

    def test_fill_in_the_middle_tokens(self, make_tokenizer: Make) -> None:
        texts = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
        tokenizer, ids = bpe(make_tokenizer, dict.fromkeys(texts, CONTROL))
        special = tokenizer.special
        assert [special.fim_pre, special.fim_suf, special.fim_mid] == [ids[text] for text in texts[:3]]
        assert tokenizer.eog_ids == {ids[text] for text in texts[3:]}

    def test_harmony_ends_a_message_not_the_turn(self, make_tokenizer: Make) -> None:
        texts = ["<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>"]
        tokenizer, ids = bpe(make_tokenizer, dict.fromkeys(texts, CONTROL))
        assert tokenizer.eog_ids == {ids["<|return|>"], ids["<|call|>"]}
        assert tokenizer.piece(ids["<|channel|>"]) == b"<|channel|>" and tokenizer.piece(ids["<|end|>"]) == b"<|end|>"

    def test_html_strike_through_is_text_in_gemma4(self, make_tokenizer: Make) -> None:
        tokenizer, ids = bpe(make_tokenizer, {"</s>": USER_DEFINED, "<|tool_response>": CONTROL, "<turn|>": CONTROL})
        assert tokenizer.eog_ids == {ids["<|tool_response>"], ids["<turn|>"]}

    def test_suppressed_tokens(self, make_tokenizer: Make) -> None:
        tokenizer, _ = bpe(make_tokenizer, {"<e>": CONTROL}, suppress_tokens=[256, 3, 9999, -1])
        assert tokenizer.suppress_ids == {256, 3}


class TestPieces:
    def test_special_pieces_are_shown_on_request(self, make_tokenizer: Make) -> None:
        tokenizer, ids = bpe(make_tokenizer, {"<c>": CONTROL, "<u>": USER_DEFINED, "<n>": UNUSED})
        assert [tokenizer.piece(ids[t]) for t in ("<c>", "<u>", "<n>")] == [b"", b"<u>", b""]
        assert tokenizer.piece(ids["<c>"], special=True) == b"<c>" == tokenizer.text(ids["<c>"]).encode()
        assert tokenizer.decode([ids["<c>"], ids["<u>"]], special=True) == "<c><u>"

    def test_text_outside_the_byte_spelling_stands_for_itself(self, make_tokenizer: Make) -> None:
        tokenizer, ids = bpe(make_tokenizer, {"你 好": NORMAL})
        assert tokenizer.piece(ids["你 好"]) == "你 好".encode()

    @pytest.mark.parametrize("token", [-1, 256, 10**9])
    def test_no_such_token(self, make_tokenizer: Make, token: int) -> None:
        tokenizer, _ = bpe(make_tokenizer, {})
        for call in (tokenizer.piece, tokenizer.text, tokenizer.is_control):
            with pytest.raises(TokenizerError, match=f"no token {token}: the vocabulary has 256"):
                call(token)

    def test_empty_token(self, make_tokenizer: Make) -> None:
        for metadata in ({"model": "gpt2"}, {"model": "llama", "add_space_prefix": False}):
            tokenizer = make_tokenizer([*BYTES, ""], [*BYTE_TYPES, NORMAL], **metadata)
            assert tokenizer.text(257) == "[EMPTY_257]"

    def test_surrogates(self, make_tokenizer: Make) -> None:
        tokenizer, _ = bpe(make_tokenizer, {})
        assert tokenizer.decode(tokenizer.encode("a\ud83e\udd99b\udc80")) == "a🦙b\ufffd"

    def test_double_tokens_do_not_stop_a_model_from_loading(self, make_tokenizer: Make) -> None:
        tokenizer, ids = spm(make_tokenizer, {"▁": (NORMAL, 0.0), "a": (NORMAL, 0.0)}, add_space_prefix=False)
        assert tokenizer.encode("a", add_special=False) == [ids["a"]]
        double = make_tokenizer(
            [*BYTES, "a", "▁", "a"], [*BYTE_TYPES, NORMAL, NORMAL, NORMAL], scores=[0.0] * 260, model="llama",
            add_space_prefix=False,
        )  # fmt: skip
        assert double.encode("a", add_special=False) == [259]


class TestRefusals:
    @pytest.mark.parametrize("model", ["t5", "rwkv", "", None])
    def test_unknown_model(self, make_tokenizer: Make, model: str | None) -> None:
        with pytest.raises(UnsupportedModelError, match=r"unsupported tokenizer.*supported: bert, gemma4, gpt2, llama"):
            make_tokenizer(["a"], model=model)

    def test_unknown_pre_tokenizer(self, make_tokenizer: Make) -> None:
        with pytest.raises(UnsupportedModelError, match=r'pre-tokenizer: "nope" \(supported: .*llama-bpe.*qwen2'):
            bpe(make_tokenizer, {}, pre="nope")

    def test_missing_pre_tokenizer(self, make_tokenizer: Make, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            tokenizer, _ = bpe(make_tokenizer, {}, pre=None)
        assert "no tokenizer.ggml.pre" in caplog.text and tokenizer.decode(tokenizer.encode("1234 a!")) == "1234 a!"

    def test_empty_vocabulary(self, make_tokenizer: Make) -> None:
        with pytest.raises(TokenizerError, match=r"'tokenizer.ggml.tokens' is empty"):
            make_tokenizer([])

    def test_too_few_types_or_scores(self, make_tokenizer: Make) -> None:
        with pytest.raises(TokenizerError, match=r"'tokenizer.ggml.token_type' is an array of 1 int32, expected 2"):
            make_tokenizer(["a", "b"], [NORMAL])
        with pytest.raises(TokenizerError, match=r"'tokenizer.ggml.scores' is an array of 1 float32, expected 257"):
            make_tokenizer(BYTES, BYTE_TYPES, scores=[0.0], model="llama")
