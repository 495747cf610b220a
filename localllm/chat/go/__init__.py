"""Go templates as Ollama's models carry them: an interpreter of Go's text/template, and its use on conversations."""

from localllm.chat.go.template import GoTemplate

__all__ = ["GoTemplate"]
