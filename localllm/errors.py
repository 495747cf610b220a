"""The exceptions of the localllm packages; it knows nothing of how they are shown.

    LocalLLMError
    ├── GGUFError                a file is not a valid GGUF, or not one that can be run
    │   └── UnsupportedModelError   valid, but an architecture, quant type or tokenizer that is not known
    ├── QuantizeError            a model that cannot be quantised as asked
    ├── ConvertError             a folder of safetensors that does not become a GGUF
    ├── TokenizerError           vocabulary metadata that cannot be used
    ├── TemplateError            a chat template that does not compile or raises
    ├── SamplingError            logits that no token can be sampled from
    ├── SettingError             an environment variable with a wrong name or value
    ├── OptionError              a model option with a wrong name, type or value
    ├── ModelfileError           a Modelfile that cannot be read
    ├── AdapterError             a LoRA adapter that cannot be used, or not with this model
    ├── RequestError             a request that the runner cannot serve as it is
    │   └── ContextLengthError      a prompt longer than the context
    ├── RunnerError              the runner process died, or could not load its model
    ├── ServerBusyError          the queue is full
    ├── MemoryLimitError         a model that the memory there is cannot hold
    │   └── ContextMemoryError      it could, with a shorter context
    └── RequestCanceledError     the client went away

Beside it stand `kernels_cpu.KernelError` and `registry.RegistryError`: those packages
import nothing of ours. Texts are built from fields; nobody parses a message.
"""


class LocalLLMError(Exception):
    """Root of what localllm raises on purpose. `hint` is the next command to try, or None."""

    hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class GGUFError(LocalLLMError):
    """The file is not a GGUF that can be read: truncated, corrupt, or inconsistent."""


class UnsupportedModelError(GGUFError):
    """A valid GGUF whose architecture, quant type or tokenizer is not supported."""


class QuantizeError(LocalLLMError):
    """A type that cannot be made, a source or importance matrix that does not fit, or a file that cannot be written."""


class ConvertError(LocalLLMError):
    """A folder of safetensors is damaged, incomplete, or holds what has no GGUF that can be run."""


class TokenizerError(LocalLLMError):
    """The vocabulary in a GGUF cannot be turned into a tokenizer."""


class TemplateError(LocalLLMError):
    """A chat template does not compile, raises, or exceeds its limits."""


class SettingError(LocalLLMError):
    """An environment variable has a value that cannot be used, or a name that is not known."""


class SamplingError(LocalLLMError):
    """The logits hold a NaN or +inf, or nothing but -inf: the model or its weights are at fault."""


class OptionError(LocalLLMError):
    """A model option has a wrong type or value."""


class ModelfileError(LocalLLMError):
    """A Modelfile cannot be read. `line` is where that was noticed, counted from 1; 0 for the whole file."""

    def __init__(self, message: str, *, line: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line = line


class AdapterError(LocalLLMError):
    """A LoRA adapter cannot be read, or is not for the model that it was to be used with."""


class RequestError(LocalLLMError):
    """The runner cannot serve this request as it stands (the client's fault, status 400)."""


class ContextLengthError(RequestError):
    """The prompt does not fit the context. `n_prompt` and `n_ctx` are counts of tokens."""

    def __init__(self, message: str, n_prompt: int, n_ctx: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class RunnerError(LocalLLMError):
    """The runner process died or could not load its model."""


class ServerBusyError(LocalLLMError):
    """Too many requests are waiting."""


class MemoryLimitError(LocalLLMError):
    """The memory there is cannot hold the model, even when no other is loaded. Both fields are bytes."""

    def __init__(
        self, message: str, needed_bytes: int = 0, available_bytes: int = 0, *, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class ContextMemoryError(MemoryLimitError):
    """The memory there is cannot hold the model with the context that was asked for, but with a shorter one (the
    client's to mend, status 400)."""


class RequestCanceledError(LocalLLMError):
    """The client went away before its request was served."""
