"""What constrains the answers of a model: from the fields of a request to an automaton over tokens."""

from localllm.runner.constraints.compiled import Compiled
from localllm.runner.constraints.compiler import Constraints
from localllm.runner.constraints.frame import Frame

__all__ = ["Compiled", "Constraints", "Frame"]
