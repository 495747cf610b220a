"""Regular languages of strings, made of regular expressions, formats and lengths, and written as expressions.

It knows neither JSON Schema nor how expressions are matched.
"""

from localllm.grammar.regular.expression import FREE_STRING, JSON_CHARACTER, json_string, utf8
from localllm.grammar.regular.language import Language

__all__ = ["FREE_STRING", "JSON_CHARACTER", "Language", "json_string", "utf8"]
