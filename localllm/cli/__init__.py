"""The command line. Each command is one module, imported only when it runs; none of them knows how models compute."""

from localllm.cli.app import main

__all__ = ["main"]
