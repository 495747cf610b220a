"""GBNF, llama.cpp's notation of grammars; how grammars are matched it does not know."""

from localllm.grammar.gbnf.parser import parse_gbnf

__all__ = ["parse_gbnf"]
