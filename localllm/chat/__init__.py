"""From a conversation to the text of a prompt, and from an answer to its parts; it knows nothing of tokens."""

from localllm.chat.go import GoTemplate
from localllm.chat.harmony import HarmonyReader
from localllm.chat.parts import Part, Reader, Text, Thinking, ToolCall
from localllm.chat.reading import AnswerReader
from localllm.chat.template import CHATML, ChatTemplate
from localllm.chat.thinking import ThinkingSplitter, ThinkingTags, thinking_arguments
from localllm.chat.thinking_tags import thinking_tags_of

__all__ = [
    "CHATML",
    "AnswerReader",
    "ChatTemplate",
    "GoTemplate",
    "HarmonyReader",
    "Part",
    "Reader",
    "Text",
    "Thinking",
    "ThinkingSplitter",
    "ThinkingTags",
    "ToolCall",
    "thinking_arguments",
    "thinking_tags_of",
]
