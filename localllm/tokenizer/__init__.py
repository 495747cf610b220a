"""Text to token ids and back, from the vocabulary in a GGUF, with llama.cpp's ids."""

from localllm.tokenizer.special import SpecialTokens
from localllm.tokenizer.stream import StreamDecoder
from localllm.tokenizer.tokenizer import Tokenizer, load_tokenizer

__all__ = ["SpecialTokens", "StreamDecoder", "Tokenizer", "load_tokenizer"]
