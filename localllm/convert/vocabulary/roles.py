"""Which tokens begin, end, pad or separate, and which are added to a text, by the files around a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from localllm.convert.folder import Config, Folder
from localllm.convert.vocabulary.tokens import Vocabulary
from localllm.gguf.writer import MetadataValue

_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # the spelling of the format
    "pad": "padding_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
}


@dataclass
class Ends:
    """The texts of the tokens that a post-processor puts before and after a text; `known` if there is one."""

    first: str | None = None
    last: str | None = None
    known: bool = False


def read_roles(folder: Folder, vocabulary: Vocabulary) -> dict[str, MetadataValue]:
    """The keys tokenizer.ggml.*_token_id and add_*_token, without their prefix.

    Raises:
        ConvertError: the files have other shapes than they should.
    """
    settings = folder.json("tokenizer_config.json")
    ids = {role: _find(folder, role, vocabulary) for role in _KEYS}
    if vocabulary.unknown is not None and ids["unk"] is None:
        ids["unk"] = vocabulary.find(vocabulary.unknown)
    ends = _ends(folder.json("tokenizer.json").inner("post_processor"))
    first, last = _id_of(ends.first, vocabulary), _id_of(ends.last, vocabulary)
    if ids["bos"] is None:
        ids["bos"] = ids["cls"] if ids["cls"] is not None else first
    found: dict[str, MetadataValue] = {}
    if ids["eos"] is None:
        ids["eos"] = ids["sep"] if ids["sep"] is not None else last
    elif last is not None and last != ids["eos"]:
        found["eot_token_id"], ids["eos"] = ids["eos"], last  # what ends a text is added; what ends a turn still does
    for role, key in _KEYS.items():
        token = ids[role]
        if token is not None:
            found[key] = token
    found |= _other_ends(folder, vocabulary, ids["eos"], found)
    if vocabulary.model == "bert":
        return found
    found["add_bos_token"] = _adds(settings, "add_bos_token", ends.known, first, ids["bos"], vocabulary)
    found["add_eos_token"] = _adds(settings, "add_eos_token", ends.known, last, ids["eos"], vocabulary)
    return found


def _adds(
    settings: Config, key: str, known: bool, end: int | None, role: int | None, vocabulary: Vocabulary
) -> MetadataValue:
    """What the settings say; else what the post-processor does; else what SentencePiece models are used to."""
    stated = settings.flag(key)
    if stated is not None:
        return stated and role is not None
    if known:
        return end is not None and end == role
    return key == "add_bos_token" and vocabulary.model == "llama" and role is not None


def _id_of(text: str | None, vocabulary: Vocabulary) -> int | None:
    return None if text is None else vocabulary.find(text)


def _find(folder: Folder, role: str, vocabulary: Vocabulary) -> int | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        entry = folder.json(name).get(f"{role}_token")
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str) and (token := vocabulary.find(text)) is not None:
            return token
    for config in _configs(folder):
        value = config.get(f"{role}_token_id")
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int) and 0 <= value < len(vocabulary.tokens):
            return value
    return vocabulary.roles.get(role)


def _configs(folder: Folder) -> Iterator[Config]:
    config = folder.json("config.json")
    yield from (folder.json("generation_config.json"), config, config.inner("text_config"))


def _other_ends(
    folder: Folder, vocabulary: Vocabulary, eos: int | None, found: dict[str, MetadataValue]
) -> dict[str, MetadataValue]:
    """Tokens beside eos that end an answer, as far as a GGUF has places for them."""
    listed: list[int] = []
    for config in _configs(folder):
        value = config.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and 0 <= token < len(vocabulary.tokens) and token not in (eos, *listed):
                listed.append(token)
    listed = [token for token in listed if token != found.get("eot_token_id")]
    places = [key for key in ("eot_token_id", "eom_token_id") if key not in found]
    # The last of a list is what ends a turn, as Llama's makers write it.
    return dict(zip(places, reversed(listed), strict=False))


def _ends(processor: Config) -> Ends:
    ends = Ends()
    steps = processor.objects("processors") if processor.get("type") == "Sequence" else [processor]
    for step in steps:
        kind = step.get("type")
        if kind in ("RobertaProcessing", "BertProcessing"):
            ends = Ends(_text(step.get("cls")), _text(step.get("sep")), known=True)
        elif kind == "TemplateProcessing":
            single = step.objects("single")
            ends = Ends(_special(single, 0), _special(single, -1), known=True)
    return ends


def _text(pair: object) -> str | None:
    return pair[0] if isinstance(pair, list) and pair and isinstance(pair[0], str) else None


def _special(template: list[Config], index: int) -> str | None:
    if len(template) < 2:
        return None
    text = template[index].inner("SpecialToken").get("id")
    return text if isinstance(text, str) else None
