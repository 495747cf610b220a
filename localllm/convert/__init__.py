"""Makes GGUF files of the safetensors that `transformers` and PEFT publish; it runs and quantises nothing."""

from localllm.convert.adapter import convert_adapter
from localllm.convert.model import convert_model
from localllm.errors import ConvertError

__all__ = ["ConvertError", "convert_adapter", "convert_model"]
