"""Patterns of URIs (RFC 3986), IRIs (RFC 3987), their templates and JSON pointers; it makes no automata."""

from __future__ import annotations

from localllm.grammar.regular.addresses import IPV6

# RFC 3987's ucschar and iprivate.
_UCSCHAR = "\\u{A0}-\\u{D7FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}" + "".join(
    f"\\u{{{plane:X}{'1000' if plane == 14 else '0000'}}}-\\u{{{plane:X}FFFD}}" for plane in range(1, 15)
)
_IPRIVATE = "\\u{E000}-\\u{F8FF}\\u{F0000}-\\u{FFFFD}\\u{100000}-\\u{10FFFD}"
_PERCENT = "%[0-9A-Fa-f]{2}"


class _Syntax:
    """The parts of a URI, of the characters that are unreserved in it and those that only a query may have."""

    def __init__(self, more: str, more_in_query: str) -> None:
        plain = f"0-9A-Za-z._~!$&'()*+,;={more}"
        letter = f"(?:[{plain}:@-]|{_PERCENT})"
        no_colon = f"(?:[{plain}@-]|{_PERCENT})"
        host = f"(?:\\[(?:{IPV6}|[Vv][0-9A-Fa-f]+\\.[0-9A-Za-z._~!$&'()*+,;=:-]+)\\]|(?:[{plain}-]|{_PERCENT})*)"
        authority = f"(?:(?:[{plain}:-]|{_PERCENT})*@)?{host}(?::[0-9]*)?"
        path = f"(?:/{letter}*)*"
        query = f"(?:\\?(?:[{plain}:@/?{more_in_query}-]|{_PERCENT})*)?"
        fragment = f"(?:#(?:[{plain}:@/?-]|{_PERCENT})*)?"
        absolute = f"//{authority}{path}|/(?:{letter}+{path})?"
        self.full = f"[A-Za-z][0-9A-Za-z+.-]*:(?:{absolute}|{letter}+{path}|){query}{fragment}"
        self.reference = f"(?:{self.full}|(?:{absolute}|{no_colon}+{path}|){query}{fragment})"


_URI, _IRI = _Syntax("", ""), _Syntax(_UCSCHAR, _IPRIVATE)
URI, URI_REFERENCE = _URI.full, _URI.reference
IRI, IRI_REFERENCE = _IRI.full, _IRI.reference

# RFC 6570, section 2, with its erratum 6937: the apostrophe is a literal.
_VARIABLE = f"(?:[0-9A-Za-z_]|{_PERCENT})(?:\\.?(?:[0-9A-Za-z_]|{_PERCENT}))*(?::[1-9][0-9]{{0,3}}|\\*)?"
URI_TEMPLATE = (
    f"(?:[!#$&'()*+,\\-./0-9:;=?@A-Z\\[\\]_a-z~{_UCSCHAR}{_IPRIVATE}]|{_PERCENT}"
    f"|\\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\\}})*"
)

# RFC 6901, and draft-bhutton-relative-json-pointer-00.
JSON_POINTER = "(?:/(?:[^/~]|~[01])*)*"
RELATIVE_JSON_POINTER = f"(?:0|[1-9][0-9]*)(?:#|{JSON_POINTER})"
