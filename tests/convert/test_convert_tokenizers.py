"""Tokenizers that were converted give the ids of those they were made of, and their files say who begins and ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers

from localllm.convert import ConvertError
from localllm.convert.folder import Config, Folder
from localllm.convert.vocabulary import read_templates, read_vocabulary
from localllm.convert.vocabulary.pre import find_family
from localllm.convert.vocabulary.sentencepiece import read_sentencepiece
from localllm.gguf import ValueType, open_gguf
from localllm.gguf.header import read_metadata
from localllm.gguf.writer import MetadataValue, Typed, Writer
from localllm.tokenizer import Tokenizer, load_tokenizer

N = 300
TEXTS = (
    "",
    "the cat and of this had",
    "  two  spaces\n\nand\tthat 1234567 it's isn't THE'LL",
    "ünïcödé 中文 日本 한국 😀 \u00a0x",
    "a\u0301 [CLS] <s> </s> <|eot_id|> the",
    "with<|im_start|>you<think>that</think> they<|turn|> have",
    "<|begin_of_text|>not<|eot_id|><|eot_id|> one",
    "the.of,and!to? [MASK] <mask> running walked",
)


def loaded(metadata: dict[str, MetadataValue], tmp_path: Path) -> Tokenizer:
    path = tmp_path / "vocabulary.gguf"
    with Writer(path, {"general.architecture": "llama", **metadata}, ()) as writer:
        writer.finish()
    with open_gguf(path) as file:
        return load_tokenizer(file)


def converted(folder: Path, tmp_path: Path, arch: str = "llama", n_vocab: int = N) -> Tokenizer:
    return loaded(read_vocabulary(Folder(folder), arch, n_vocab), tmp_path)


@pytest.fixture
def write_tokenizer(tmp_path: Path, hf_tokenizers: ModuleType) -> Callable[..., Path]:
    """write_tokenizer(kind, {"tokenizer.json": change}) writes a tokenizer; a change takes and alters a file."""

    def write(kind: str, changes: dict[str, Callable[[dict[str, Any]], object]] | None = None) -> Path:
        folder = tmp_path / "tokenizer"
        folder.mkdir()
        hf_tokenizers.write(kind, N, folder)
        for name, change in (changes or {}).items():
            values = json.loads((folder / name).read_text())
            change(values)
            (folder / name).write_text(json.dumps(values))
        return folder

    return write


@pytest.mark.parametrize("kind", ["llama3", "qwen", "roberta", "spm", "bert"])
def test_ids_are_those_of_the_tokenizers_library(
    kind: str, write_tokenizer: Callable[..., Path], tmp_path: Path
) -> None:
    folder = write_tokenizer(kind)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = converted(folder, tmp_path)
    for text in TEXTS:
        if kind == "qwen":
            text = text.replace("a\u0301", "á")  # a GGUF cannot say that text is to be composed
        if kind == "spm" and not text:
            continue  # the library puts a space before nothing
        assert ours.encode(text) == theirs.encode(text).ids, text
        assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False).ids, text


def test_roles_of_llama_3(write_tokenizer: Callable[..., Path], tmp_path: Path) -> None:
    folder = write_tokenizer("llama3")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [295, 296]}))
    ours = converted(folder, tmp_path)
    by_text = {"<|begin_of_text|>": 294, "<|end_of_text|>": 295, "<|eot_id|>": 296}
    assert ours.bos_id == by_text["<|begin_of_text|>"] and ours.eos_id == by_text["<|eot_id|>"]
    assert {295, 296} <= ours.eog_ids
    assert ours.add_bos and not ours.add_eos


def test_all_tokens_that_end_an_answer_are_known(write_tokenizer: Callable[..., Path]) -> None:
    """Where their texts are not among the known ones too: a file has two places beside eos."""
    folder = write_tokenizer("spm")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 270, 271]}))
    found = read_vocabulary(Folder(folder), "llama", N)
    ids = [found[f"tokenizer.ggml.{role}_token_id"] for role in ("eos", "eot", "eom")]
    assert ids == [2, 271, 270]


def test_a_tokenizer_that_ends_texts_with_another_token(write_tokenizer: Callable[..., Path], tmp_path: Path) -> None:
    """As Qwen3-Embedding's: the text's end is added, and the turn's end stays an end of generation."""

    def ends(values: dict[str, Any]) -> None:
        end = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
        values["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}, end],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [291], "tokens": ["<|endoftext|>"]}},
        }

    ours = converted(write_tokenizer("qwen", {"tokenizer.json": ends}), tmp_path)
    assert ours.encode("the")[-1] == ours.eos_id == 291
    assert 293 in ours.eog_ids and not ours.add_bos


def test_rows_without_tokens_and_tokens_without_rows(write_tokenizer: Callable[..., Path]) -> None:
    folder = write_tokenizer("qwen")
    more = read_vocabulary(Folder(folder), "qwen2", 310)
    tokens, types = more["tokenizer.ggml.tokens"], more["tokenizer.ggml.token_type"]
    assert isinstance(tokens, Typed) and isinstance(types, Typed)
    assert len(tokens.value) == len(types.value) == 310
    assert (tokens.value[309], types.value[309]) == ("[PAD309]", 5)
    fewer = read_vocabulary(Folder(folder), "qwen2", 293)["tokenizer.ggml.tokens"]
    assert isinstance(fewer, Typed) and fewer.value[-1] == "<|im_start|>"


def test_types_of_added_tokens(write_tokenizer: Callable[..., Path]) -> None:
    found = read_vocabulary(Folder(write_tokenizer("qwen")), "qwen2", N)
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert isinstance(tokens, Typed) and isinstance(types, Typed)
    kinds = dict(zip(tokens.value, types.value, strict=True))
    assert kinds["<|im_end|>"] == 3 and kinds["<think>"] == 4 and kinds["[PAD299]"] == 5 and kinds["a"] == 1


class TestFiles:
    """The same vocabulary in other files."""

    def test_vocab_and_merges(self, write_tokenizer: Callable[..., Path], tmp_path: Path) -> None:
        folder = write_tokenizer("qwen")
        whole = read_vocabulary(Folder(folder), "qwen2", N)
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        (folder / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]))
        lines = [" ".join(merge) for merge in tokenizer["model"]["merges"]]
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
        added = {token["id"]: token for token in tokenizer["added_tokens"]}
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        decoder = {
            str(token): {"content": added[token]["content"], "special": added[token]["special"]} for token in added
        }
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "added_tokens_decoder": decoder}))
        (folder / "tokenizer.json").unlink()
        assert read_vocabulary(Folder(folder), "qwen2", N) == whole

    def test_vocab_txt(self, write_tokenizer: Callable[..., Path]) -> None:
        folder = write_tokenizer("bert")
        whole = read_vocabulary(Folder(folder), "bert", N)
        vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
        (folder / "tokenizer.json").unlink()
        assert read_vocabulary(Folder(folder), "bert", N) == whole

    def test_no_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(ConvertError, match=r"no tokenizer found, expected tokenizer\.json"):
            read_vocabulary(Folder(tmp_path), "llama", N)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spm")
    (folder / "text").write_text("the cat sat on the mat and that was that\nhello world of words\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=293,
        byte_fallback=True,
        user_defined_symbols=["<user>"],
        control_symbols=["<control>"],
        minloglevel=2,
    )
    return folder


class TestSentencePiece:
    def test_pieces_are_those_of_the_library(self, model: Path) -> None:
        path = model / "tokenizer.model"
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
        ours = read_sentencepiece(path.read_bytes(), path)
        ids = range(theirs.vocab_size())
        assert ours.tokens == [theirs.id_to_piece(i) for i in ids]
        assert np.allclose(ours.scores, [theirs.get_score(i) for i in ids])
        for i in ids:
            kinds = (theirs.is_unknown(i), theirs.is_control(i), theirs.is_unused(i), theirs.is_byte(i))
            expected = {0: 2, 1: 3, 2: 5, 3: 6}[kinds.index(True)] if any(kinds) else (1, 4)
            assert ours.types[i] == expected or ours.types[i] in (1, 4)
        assert ours.types[ours.tokens.index("<user>")] == 4
        assert ours.add_space_prefix

    def test_ids_are_those_of_the_library(self, model: Path, tmp_path: Path) -> None:
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(model / "tokenizer.model"))
        ours = converted(model, tmp_path)
        for text in ("the cat that sat", "hello words", "ünï 中", "mats and sand"):
            assert ours.encode(text, add_special=False) == theirs.encode(text), text
        assert ours.encode("the")[0] == ours.bos_id == 1

    @pytest.mark.parametrize("cut", [1, 7, 100, 2000])
    def test_damage_is_an_error_or_gives_pieces(self, model: Path, cut: int) -> None:
        raw = (model / "tokenizer.model").read_bytes()
        with pytest.raises(ConvertError, match=r"tokenizer\.model"):
            read_sentencepiece(raw[: len(raw) // 2 + cut] + b"\xff" * 20, model / "tokenizer.model")
        for bad in (b"", b"\x0a\xff\xff\xff\xff\x7f", b"version https://git-lfs"):
            with pytest.raises(ConvertError):
                read_sentencepiece(bad, model / "tokenizer.model")

    def test_unigram_models_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("the cat sat on the mat and that was that\n" * 20)
        sentencepiece.SentencePieceTrainer.train(
            input=str(tmp_path / "text"), model_prefix=str(tmp_path / "u"), vocab_size=16, minloglevel=2
        )
        with pytest.raises(ConvertError, match="kind 1, expected 2"):
            read_sentencepiece((tmp_path / "u.model").read_bytes(), tmp_path / "u.model")


GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
PLAIN = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
DEEPSEEK = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


class TestFamilies:
    """As the makers of models write their steps in tokenizer.json."""

    @pytest.mark.parametrize(
        ("steps", "ignore_merges", "name"),
        [
            ([GPT2], False, "gpt-2"),
            ([{"type": "Digits", "individual_digits": True}, GPT2], False, "smollm"),
            ([split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), PLAIN], False, "deepseek-v3"),
            (
                [
                    split(
                        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
                        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
                        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
                        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
                    ),
                    PLAIN,
                ],
                False,
                "gpt-4o",
            ),
        ],
    )
    def test_the_family_is_found(self, steps: list[dict[str, Any]], ignore_merges: bool, name: str) -> None:
        values = {
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "model": {"ignore_merges": ignore_merges},
        }
        assert find_family(Config(Path("tokenizer.json"), values)) == name

    def test_llama_3_and_qwen_differ_in_digits_and_merges(self, hf_tokenizers: ModuleType) -> None:
        def family(kind: str) -> str:
            return find_family(Config(Path("t"), hf_tokenizers.files(kind, N)["tokenizer.json"]))

        assert (family("llama3"), family("qwen"), family("roberta")) == ("llama-bpe", "qwen2", "gpt-2")

    @pytest.mark.parametrize(
        ("steps", "message"),
        [
            ([split(r"\p{Lu}+"), PLAIN], "expected one of"),
            ([split("("), PLAIN], "cannot be read"),
            ([{"type": "UnicodeScripts"}], "'UnicodeScripts' is not known"),
            ([{**GPT2, "add_prefix_space": True}], "add_prefix_space"),
        ],
    )
    def test_others_are_refused(self, steps: list[dict[str, Any]], message: str) -> None:
        values = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "model": {}}
        with pytest.raises(ConvertError, match=message):
            find_family(Config(Path("tokenizer.json"), values))


class TestTemplates:
    def test_named_ones(self, write_tokenizer: Callable[..., Path]) -> None:
        folder = write_tokenizer("qwen")
        assert read_templates(Folder(folder)) == {
            "tokenizer.chat_template": "a",
            "tokenizer.chat_templates": ["tool_use"],
            "tokenizer.chat_template.tool_use": "b",
        }
        (folder / "chat_template.jinja").write_text("c")
        assert read_templates(Folder(folder)) == {"tokenizer.chat_template": "c"}

    def test_none(self, tmp_path: Path) -> None:
        assert read_templates(Folder(tmp_path)) == {}


def test_types_in_the_file_are_the_usual_ones(write_tokenizer: Callable[..., Path], tmp_path: Path) -> None:
    found = read_vocabulary(Folder(write_tokenizer("spm")), "llama", N)
    loaded(found, tmp_path)
    metadata = read_metadata(tmp_path / "vocabulary.gguf")
    assert metadata["tokenizer.ggml.model"] == "llama" and metadata["tokenizer.ggml.add_space_prefix"] is True
    with open_gguf(tmp_path / "vocabulary.gguf") as file:
        kinds = {key: file.types[f"tokenizer.ggml.{key}"] for key in ("scores", "token_type", "bos_token_id", "tokens")}
    assert kinds == {
        "scores": ValueType.FLOAT32,
        "token_type": ValueType.INT32,
        "bos_token_id": ValueType.UINT32,
        "tokens": ValueType.STRING,
    }
