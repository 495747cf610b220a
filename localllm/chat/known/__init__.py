"""Prompt formats that many models share, and which of them a model's template writes."""

from localllm.chat.known.detection import detect
from localllm.chat.known.formats import KNOWN, KnownTemplate

__all__ = ["KNOWN", "KnownTemplate", "detect"]
