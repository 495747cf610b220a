"""The languages of mailboxes, as RFC 5321 and RFC 6531 define them; of other formats it knows nothing."""

from __future__ import annotations

from localllm.grammar.regular import addresses
from localllm.grammar.regular.language import Language

# RFC 5321, section 4.5.3.1.1, in octets; of characters beyond ASCII so many are never more.
MAX_LOCAL_PART = 64
MAX_UNICODE_LOCAL_PART = 16
# Of so many characters Punycode never makes a label of more than 63.
MAX_UNICODE_LABEL = 8

_ATOM = "[0-9A-Za-z!#$%&'*+/=?^_`{{|}}~{more}-]+"
# Section 4.1.2: a dot-string or a quoted one.
_LOCAL_PART = f'(?:{_ATOM}(?:\\.{_ATOM})*|"(?:[ !#-\\[\\]-~{{more}}]|\\\\[ -~])*")'
_LITERAL = f"\\[(?:{addresses.IPV4}|[Ii][Pp][Vv]6:{addresses.IPV6})\\]"

# Letters that RFC 5892 and RFC 5893 permit wherever they stand: lower case of Latin, Greek and Cyrillic, kana, Han and
# Hangul.
_LETTERS = (
    "\\xDF-\\xF6\\xF8-\\xFF\\u03AC-\\u03CE\\u0430-\\u045F\\u3041-\\u3096\\u30A1-\\u30FA\\u4E00-\\u9FA5\\uAC00-\\uD7A3"
)
# And marks, which no label begins with.
_MARKS = "\\u0300-\\u033F"
_UNICODE_LABEL = f"[0-9A-Za-z{_LETTERS}][0-9A-Za-z{_LETTERS}{_MARKS}]{{0,{MAX_UNICODE_LABEL - 1}}}"


def email() -> Language:
    """RFC 5321's `Mailbox`, its local part and labels of bounded length."""
    local = Language.of_regex(_LOCAL_PART.format(more=""), anchored=True) & Language.of_length(1, MAX_LOCAL_PART)
    return local.concat(Language.of_regex(f"@(?:{addresses.HOST_NAME}|{_LITERAL})", anchored=True))


def idn_email() -> Language:
    """RFC 6531's extension of it. Labels that are not ASCII are of few characters, and of some scripts."""
    local = Language.of_regex(_LOCAL_PART.format(more="\\u{80}-\\u{10FFFF}"), anchored=True)
    local &= Language.of_length(1, MAX_UNICODE_LOCAL_PART)
    local |= Language.of_regex(_LOCAL_PART.format(more=""), anchored=True) & Language.of_length(1, MAX_LOCAL_PART)
    label = f"(?:{addresses.LABEL}|{_UNICODE_LABEL})"
    return local.concat(Language.of_regex(f"@(?:{label}(?:\\.{label})*|{_LITERAL})", anchored=True))
