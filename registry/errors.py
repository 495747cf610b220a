"""The exceptions of the registry package; it knows nothing of status codes or of how they are shown.

    RegistryError
    ├── InvalidNameError         text that is not a model name
    ├── InvalidDigestError       text that is not a sha256 digest
    ├── ModelNotFoundError       no such model in the store
    ├── BrokenModelError         a manifest or blob in the store is missing, damaged or nonsense
    ├── DigestMismatchError      bytes that are not what their digest says
    ├── NoSpaceError             the disk is full, or would be
    ├── StoreNotWritableError    the store's folder may not be written, or cannot be locked
    ├── PullCanceledError        the caller gave up
    ├── PushDeniedError          a registry does not let this user write there
    ├── CatalogError             the catalog file is not valid
    └── SourceError              a source cannot give what was asked for
        ├── NotInSourceError        it answered, and does not have the model
        ├── InsecureProtocolError   it would have to be spoken to without TLS, and nobody allowed that
        ├── UnreachableError        no connection, or one that broke
        ├── RemoteError             it answered with an error
        │   └── RemoteNotFoundError    … that it has no such thing
        ├── DownloadError           a blob did not come, however often it was asked for
        ├── ManifestError           a manifest did not come, or is none of a model
        └── PipError                the pip child process failed

Texts are built from fields; where clients of Ollama match a text, it is Ollama's.
"""

from __future__ import annotations


class RegistryError(Exception):
    """Root of what this package raises on purpose. `hint` is what to try next, or None."""

    hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class InvalidNameError(RegistryError):
    """`name` is not a model name; `reason` says which rule it breaks."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__("invalid model name", hint=reason)
        self.name = name
        self.reason = reason


class InvalidDigestError(RegistryError):
    """`digest` is not `sha256:` or `sha256-` followed by 64 hexadecimal digits."""

    def __init__(self, digest: str) -> None:
        super().__init__("invalid digest format")
        self.digest = digest


class ModelNotFoundError(RegistryError):
    """The store has no model of that `name` (as the caller wrote it)."""

    def __init__(self, name: str) -> None:
        super().__init__(f"model '{name}' not found")
        self.name = name


class BrokenModelError(RegistryError):
    """What the store holds for a model cannot be used: `subject` is the manifest or blob, `reason` why."""

    def __init__(self, subject: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{subject}: {reason}", hint=hint)
        self.subject = subject
        self.reason = reason


class DigestMismatchError(RegistryError):
    """Bytes hash to `got` where `want` was promised (both `sha256:<hex>`)."""

    def __init__(self, want: str, got: str) -> None:
        super().__init__(f"digest mismatch, file must be downloaded again: want {want}, got {got}")
        self.want = want
        self.got = got


class NoSpaceError(RegistryError):
    """The file system that holds `path` is full; `needed_bytes` is None when a write itself failed."""

    def __init__(self, path: str, needed_bytes: int | None = None, free_bytes: int | None = None) -> None:
        detail = ""
        if needed_bytes is not None and free_bytes is not None:
            detail = f" ({_megabytes(needed_bytes)} needed, {_megabytes(free_bytes)} free)"
        super().__init__(
            f'no space left on device: "{path}"{detail}',
            hint="free some space, remove models with `localllm rm`, or set LOCALLLM_MODELS to another disk",
        )
        self.path = path
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class StoreNotWritableError(RegistryError):
    """The system does not let this process write (or lock) `path`; `reason` is its own text."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f'cannot write to the model store: "{path}": {reason}',
            hint="check the owner of the folder, or set LOCALLLM_MODELS to one of your own",
        )
        self.path = path
        self.reason = reason


class PullCanceledError(RegistryError):
    """The caller set the cancel event."""

    def __init__(self) -> None:
        super().__init__("request canceled")


class PushDeniedError(RegistryError):
    """`repository` is not this user's to write to; `detail` is what its registry said, if it was asked."""

    def __init__(self, repository: str, detail: str = "", *, hint: str | None = None) -> None:
        super().__init__(
            "you are not authorized to push to this namespace, create the model under a namespace you own"
            + (f": {detail}" if detail else ""),
            hint=hint,
        )
        self.repository = repository
        self.detail = detail


class CatalogError(RegistryError):
    """The catalog holds an entry that cannot be understood."""


class SourceError(RegistryError):
    """A source cannot give what was asked for."""


class NotInSourceError(SourceError):
    """The source was asked and does not have `name`."""

    def __init__(self, name: str, *, hint: str | None = None) -> None:
        super().__init__("pull model manifest: file does not exist", hint=hint)
        self.name = name


class InsecureProtocolError(SourceError):
    """`host` was named with `http://` and the caller did not allow that."""

    def __init__(self, host: str) -> None:
        super().__init__("insecure protocol http", hint=f"--insecure allows unprotected connections to {host}")
        self.host = host


class UnreachableError(SourceError):
    """There is no talking to `host`; `reason` is the transport's own text."""

    def __init__(self, host: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"cannot reach {host}: {reason}", hint=hint)
        self.host = host
        self.reason = reason


class RemoteError(SourceError):
    """`host` answered with `status` and `detail` (what its body says); `retry_after` is its header of that name."""

    def __init__(self, host: str, status: int, detail: str, *, hint: str | None = None) -> None:
        super().__init__(f"{status}: {detail} ({host})", hint=hint)
        self.host = host
        self.status = status
        self.detail = detail
        self.retry_after: str | None = None


class RemoteNotFoundError(RemoteError):
    """The host has no such manifest or blob."""


class DownloadError(SourceError):
    """`last` is how the last try of many failed."""

    def __init__(self, last: SourceError) -> None:
        super().__init__(f"max retries exceeded: {last}", hint="what has come is kept: pull again to go on from there")
        self.last = last


class ManifestError(SourceError):
    """No manifest of a model was to be had: `reason` says why."""

    def __init__(self, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"pull model manifest: {reason}", hint=hint)
        self.reason = reason


class PipError(SourceError):
    """`pip download` of `requirement` ended with `exit_code`; `output` is the last lines it printed."""

    def __init__(self, requirement: str, exit_code: int, output: str, *, hint: str | None = None) -> None:
        super().__init__(f'pip could not download "{requirement}" (exit code {exit_code}): {output}', hint=hint)
        self.requirement = requirement
        self.exit_code = exit_code
        self.output = output


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.1f} MB"
