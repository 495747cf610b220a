"""Text to token ids and back, from the vocabulary in a GGUF, with llama.cpp's ids."""

from localllm.tokenizer.loader import load_tokenizer
from localllm.tokenizer.special import SpecialTokens
from localllm.tokenizer.stream import StreamDecoder
from localllm.tokenizer.tokenizer import Tokenizer

__all__ = ["SpecialTokens", "StreamDecoder", "Tokenizer", "load_tokenizer"]
