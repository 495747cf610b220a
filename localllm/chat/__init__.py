"""From a conversation to the text of a prompt, and from an answer to its thinking; it knows nothing of tokens."""

from localllm.chat.go import GoTemplate
from localllm.chat.template import CHATML, ChatTemplate
from localllm.chat.thinking import ThinkingSplitter, thinking_arguments

__all__ = ["CHATML", "ChatTemplate", "GoTemplate", "ThinkingSplitter", "thinking_arguments"]
