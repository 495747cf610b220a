"""Tool calls in what a model writes: how each family writes them, and finding them in a stream."""

from localllm.chat.tools.declared import Tools
from localllm.chat.tools.detect import begun_by, syntaxes_of
from localllm.chat.tools.reader import CallReader

__all__ = ["CallReader", "Tools", "begun_by", "syntaxes_of"]
