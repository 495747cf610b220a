"""From the tokenizer files of a Hugging Face folder to the tokenizer metadata of a GGUF; it reads no weights."""

from __future__ import annotations

from localllm.convert.folder import Config, Folder
from localllm.convert.vocabulary.kinds import read_model
from localllm.convert.vocabulary.roles import read_roles
from localllm.convert.vocabulary.tokens import ADDED_SCORE, PREFIX, added_tokens
from localllm.errors import ConvertError
from localllm.gguf.writer import MetadataValue

__all__ = ["read_templates", "read_vocabulary"]

TEMPLATE_KEY = "tokenizer.chat_template"
MAX_UNUSED = 1 << 20


def read_vocabulary(folder: Folder, arch: str, n_vocab: int) -> dict[str, MetadataValue]:
    """The tokenizer of a model whose embedding has `n_vocab` rows, as the metadata of a GGUF.

    Tokens beyond the rows are left out, and rows beyond the tokens get tokens that are never used.

    Raises:
        ConvertError: files are missing or damaged, or the tokenizer is of a kind that is not supported.
    """
    vocabulary = read_model(folder, arch)
    trained = len(vocabulary.tokens)
    for added in added_tokens(folder):
        if added.token >= n_vocab:
            continue
        if vocabulary.model != "bert" or added.special or added.token >= trained:
            vocabulary.put(added.token, added.text, added.kind)
            if vocabulary.scores is not None and added.token >= trained:
                vocabulary.scores[added.token] = ADDED_SCORE
    if n_vocab - len(vocabulary.tokens) > MAX_UNUSED:
        raise ConvertError(f"{folder.path}: {len(vocabulary.tokens)} tokens for an embedding of {n_vocab} rows")
    vocabulary.extend(n_vocab)
    vocabulary.cut(n_vocab)
    roles = read_roles(folder, vocabulary)
    return {**vocabulary.metadata(), **{PREFIX + key: value for key, value in roles.items()}}


def read_templates(folder: Folder) -> dict[str, MetadataValue]:
    """The chat templates, by their keys in a GGUF.

    Raises:
        ConvertError: files are damaged.
    """
    templates = _templates(folder)
    main = templates.pop("default", None)
    if main is None:
        return {}
    found: dict[str, MetadataValue] = {TEMPLATE_KEY: main}
    if templates:
        found["tokenizer.chat_templates"] = sorted(templates)
        found |= {f"{TEMPLATE_KEY}.{name}": text for name, text in sorted(templates.items())}
    return found


def _templates(folder: Folder) -> dict[str, str]:
    jinja = folder.text("chat_template.jinja")
    if jinja is not None:
        more = sorted((folder.path / "additional_chat_templates").glob("*.jinja"))
        others = {path.stem: folder.text(f"additional_chat_templates/{path.name}") or "" for path in more}
        return {"default": jinja, **others}
    for name in ("chat_template.json", "tokenizer_config.json"):
        config = folder.json(name)
        value = config.get("chat_template")
        if isinstance(value, str):
            return {"default": value}
        if isinstance(value, list):
            entries = config.objects("chat_template")
            return {entry.string("name"): entry.string("template") for entry in entries}
        if value is not None:
            raise Config(config.path, {}).error("chat_template", value, "a template, or a list of them")
    return {}
