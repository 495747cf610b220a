"""Modelfiles: from text to instructions, from instructions to what they ask for, and back to text.

It knows nothing of stores, servers or what a model is.
"""

from localllm.modelfile.content import Modelfile, read
from localllm.modelfile.encoding import decode
from localllm.modelfile.folder import find_files
from localllm.modelfile.parser import KEYWORDS, ROLES, Instruction, parse
from localllm.modelfile.paths import locate
from localllm.modelfile.writer import write

__all__ = ["KEYWORDS", "ROLES", "Instruction", "Modelfile", "decode", "find_files", "locate", "parse", "read", "write"]
