"""Which known format a Jinja template writes; it knows nothing of files or models.

Ollama compares the template's source with a list of sources. What counts is what a template writes, though, not how:
a conversation is rendered by both and the prompts are compared. Where the source does not compile, only the marks that
it contains can tell.
"""

from __future__ import annotations

import re
from dataclasses import replace

from localllm.chat.go import GoTemplate
from localllm.chat.known.distance import edit_distance
from localllm.chat.known.formats import KNOWN, KnownTemplate
from localllm.chat.template import ChatTemplate
from localllm.errors import TemplateError

# Edits between two prompts of four messages that are still the same format, blanks not counted.
MAX_EDITS = 12
CONVERSATION = [
    {"role": "system", "content": "Answer in one word, please."},
    {"role": "user", "content": "What is the capital of Iceland?"},
    {"role": "assistant", "content": "It is Reykjavík."},
    {"role": "user", "content": "And how many people live there today?"},
]
# Stands for the end token until it is known whose it is.
EOS = "\x00eos\x00"
# The start token, which the tokenizer adds, as templates spell it out.
_BOS = re.compile(r"<s>|<bos>|<BOS_TOKEN>|<\|begin_of_text\|>|<\|startoftext\|>")
_SPECIAL = re.compile(r"<[^<>]+>|\[/?INST\]")
_BLANKS = re.compile(r"\s+")


def detect(jinja: str) -> KnownTemplate | None:
    """The format that the template's source writes, None where it is none of KNOWN."""
    try:
        template = ChatTemplate(jinja, "", EOS)
        texts = [template.render(conversation) for conversation in (CONVERSATION, CONVERSATION[1:])]
    except TemplateError:
        return _marked(jinja)
    ranked = sorted((_distance(jinja, texts, known, template.supports_system), i) for i, known in enumerate(KNOWN))
    (n_edits, _), position = ranked[0]
    return KNOWN[position] if n_edits <= MAX_EDITS else None


def _distance(jinja: str, texts: list[str], known: KnownTemplate, has_system: bool) -> tuple[int, int]:
    """Edits between what both make of the conversation; first blanks do not count, then they do.

    A template may drop the system text, put it elsewhere, or write one of its own: then only the turns are compared,
    as the end of the prompt.
    """
    whole, turns = (text.replace(EOS, known.eos) for text in texts)
    if known.user[0].strip() not in whole or not _has_system_marks(jinja, known):
        return MAX_EDITS + 1, 0
    expected = [GoTemplate(known.template).render(c) for c in (CONVERSATION, CONVERSATION[1:])]
    n_whole = edit_distance(_plain(whole), _plain(expected[0]), MAX_EDITS)
    wanted = _plain(expected[1])
    n_turns = edit_distance(_plain(turns)[-len(wanted) :], wanted, MAX_EDITS)
    n_exact = edit_distance(turns[-len(expected[1]) :], expected[1], 2 * MAX_EDITS)
    if has_system:
        n_exact += edit_distance(whole, expected[0], 2 * MAX_EDITS)
    return min(n_whole, n_turns), n_exact


def _has_system_marks(jinja: str, known: KnownTemplate) -> bool:
    """Formats that put the system text into the first turn differ in its marks, where they have any."""
    return not known.begins_turn or all(mark in jinja for mark in _SPECIAL.findall("".join(known.system)))


def _plain(text: str) -> str:
    return _BLANKS.sub("", _BOS.sub("", text))


def _marked(jinja: str) -> KnownTemplate | None:
    """The only format of which all marks around messages occur in the source."""
    found = [known for known in KNOWN if all(mark in jinja for mark in _marks(known))]
    return replace(found[0], is_native=False) if len(found) == 1 else None


def _marks(known: KnownTemplate) -> set[str]:
    """The special words of a format: those in angle brackets that mention no role, which sources put in by name."""
    texts = "".join((*known.user, *known.answer))
    words = set(_SPECIAL.findall(texts)) or {known.user[0].strip(), known.answer[0].strip()}
    roles = ("user", "assistant", "USER", "CHATBOT")
    return {word for word in words if not any(role in word for role in roles)} or words
