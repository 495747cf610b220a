"""localllm runs language models on the computer in front of you."""

__version__ = "0.1.0"
