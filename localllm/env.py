"""The environment variables, one function each, read when called; it knows nothing of who uses the values.

`LOCALLLM_X` counts; where it is unset or empty, its twin `OLLAMA_X` does. Spaces and outer quotes are trimmed.
A value of ours that cannot be used is a SettingError; one of the twin's is logged and its default used, as
Ollama does. A boolean that does not parse counts as true. `check` looks at everything at once, for the start
of the daemon.
"""

import difflib
import ipaddress
import logging
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import platformdirs

from localllm.durations import FOREVER_NS, NS_PER_S, parse_go_duration
from localllm.errors import SettingError

logger = logging.getLogger(__name__)

PREFIX = "LOCALLLM_"
TWIN_PREFIX = "OLLAMA_"
DEFAULT_PORT = 11434
AUTOMATIC_NUM_PARALLEL = 16
KV_CACHE_TYPES = ("f32", "f16", "q8_0", "q4_0")
_SCHEME_PORTS = {"http": 80, "https": 443}
# A size below is meant as another unit, or as on and off.
FEWEST_BYTES = 100
_SIZE_FACTORS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

T = TypeVar("T")


@dataclass(frozen=True)
class Variable:
    """One row of the table: the name without prefix, its default as text, what it means."""

    name: str
    default: str
    meaning: str
    has_twin: bool = True


VARIABLES: tuple[Variable, ...] = (
    Variable("HOST", "127.0.0.1:11434", "address the daemon listens on and the commands talk to"),
    Variable("MODELS", "~/.localllm/models", "folder of the model store (Ollama's layout; may be Ollama's own)"),
    Variable("KEEP_ALIVE", "5m", "how long a model stays loaded after its last request (negative: for ever)"),
    Variable("LOAD_TIMEOUT", "5m", "give up loading a model after this long without progress (0: never)"),
    Variable("NUM_PARALLEL", "0", "requests one model serves at the same time; others wait (0: 16)"),
    Variable("MAX_LOADED_MODELS", "0", "models loaded at the same time (0: chosen from memory, at most 3)"),
    Variable(
        "TBT_TARGET_MS",
        "100",
        "milliseconds between the tokens of an answer that other requests' prompts may stretch it to (0: any)",
        False,
    ),
    Variable(
        "MAX_MEMORY",
        "90%",
        "what loaded models may take together: a share of the memory of machine or container, or 8GB",
        False,
    ),
    Variable(
        "MAX_QUEUE", "512", "requests that may wait before more are refused: those for the model that most wait for"
    ),
    Variable(
        "CONTEXT_LENGTH",
        "0",
        "context length where neither model nor request sets num_ctx (0: chosen from model and free memory)",
    ),
    Variable(
        "KV_CACHE_TYPE",
        "f16",
        "type of the KV cache: f16, q8_0 or q4_0 (half and a quarter of its size, less exact), or f32",
    ),
    Variable("GO_TEMPLATE", "", "1 or 0 settles whether a model's own TEMPLATE counts beside its GGUF's chat template"),
    Variable("NUM_THREADS", "0", "threads of a model (0: the physical cores)", False),
    Variable("ORIGINS", "", "further origins that browsers may call from, comma-separated, * as wildcard"),
    Variable(
        "API_KEYS", "", "keys that the daemon accepts, comma-separated; `@path` is a file of `localllm keys`", False
    ),
    Variable("API_KEY", "", "key that the commands send"),
    Variable("TLS_CERT", "", "certificate chain (PEM) of the daemon; the commands trust it too", False),
    Variable("TLS_KEY", "", "key (PEM) of the daemon's certificate", False),
    Variable("MAX_BODY", "64MB", "largest body of a request", False),
    Variable("MAX_UPLOAD", "512MB", "largest file that may be uploaded", False),
    Variable("FILES_MAX", "10GB", "what uploaded files and results of batches may take together", False),
    Variable(
        "CLIENT_TIMEOUT", "30s", "how long a client may take for a request's header, and pause in its body", False
    ),
    Variable("MAX_CONNECTIONS", "1024", "connections at the same time", False),
    Variable("DEBUG", "0", "1 logs more"),
    Variable("NOPRUNE", "0", "1 keeps blobs that no model uses"),
    Variable("NOHISTORY", "0", "1 keeps no history of prompts"),
    Variable("EDITOR", "", "editor for long prompts (else $VISUAL, $EDITOR)"),
    Variable("STATE_DIR", "~/.localllm", "folder of logs, history and, unless set apart, models", False),
    Variable(
        "CACHE_DIR", "the user's cache folder", "folder of compiled kernels, repacked weights, evaluated prompts", False
    ),
    Variable(
        "WEIGHT_CACHE_MAX", "20%", "what repacked weights may take: a share of the disk, or 50GB (0: none)", False
    ),
    Variable(
        "KV_DISK", "5%", "what evaluated prompts may take on disk: a share of it, or 10GB (0: they are not kept)", False
    ),
    Variable("CPU", "", "force a lower instruction set: avxvnni, avx2 or portable", False),
)
_BY_NAME = {variable.name: variable for variable in VARIABLES}


class HostAddress(NamedTuple):
    """Where the daemon is: scheme, host (IPv6 without brackets), port, path ("" or "/prefix")."""

    scheme: str
    host: str
    port: int
    path: str


def _raw(full_name: str) -> str:
    return os.environ.get(full_name, "").strip().strip("\"'").strip()


def _text(name: str) -> tuple[str, str]:
    """(value, full name it came from); an empty value where neither twin is set."""
    own = _raw(PREFIX + name)
    if own or not _BY_NAME[name].has_twin:
        return own, PREFIX + name
    return _raw(TWIN_PREFIX + name), TWIN_PREFIX + name


def _read(name: str, default: T, parse: Callable[[str], T], expected: str) -> T:
    text, full_name = _text(name)
    if not text:
        return default
    try:
        return parse(text)
    except ValueError:
        message = f"{full_name}={text!r} cannot be used: expected {expected}"
    if full_name.startswith(PREFIX):
        raise SettingError(message, hint=f"unset {full_name}, or set it as in {full_name}={_BY_NAME[name].default}")
    logger.warning("%s; using the default", message)
    return default


def _parse_bool(text: str) -> bool:
    return text.lower() not in ("0", "f", "false")


def _parse_count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError(text)
    return count


def _parse_duration_ns(text: str) -> int:
    try:
        return int(text) * NS_PER_S
    except ValueError:
        return parse_go_duration(text)


def _parse_keep_alive_ns(text: str) -> int:
    duration_ns = _parse_duration_ns(text)
    return FOREVER_NS if duration_ns < 0 else min(duration_ns, FOREVER_NS)


def _parse_host(text: str) -> HostAddress:
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
    scheme = scheme.lower()
    if scheme not in _SCHEME_PORTS:
        raise ValueError(text)
    authority, _, path = rest.partition("/")
    host, port = _split_port(authority, _SCHEME_PORTS[scheme] if separator else DEFAULT_PORT)
    return HostAddress(scheme, host or "127.0.0.1", port, f"/{path.strip('/')}" if path.strip("/") else "")


def _split_port(authority: str, default_port: int) -> tuple[str, int]:
    if authority.startswith("["):
        host, bracket, tail = authority[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise ValueError(authority)
        port_text = tail[1:]
    elif authority.count(":") > 1:
        host, port_text = str(ipaddress.IPv6Address(authority)), ""
    else:
        host, _, port_text = authority.partition(":")
    port = int(port_text) if port_text else default_port
    if not 0 <= port <= 65535:
        raise ValueError(authority)
    return host, port


def host() -> HostAddress:
    """Where the daemon listens, from `host`, `host:port`, `:port`, `http://host` (port 80), `https://host` (443)."""
    default = HostAddress("http", "127.0.0.1", DEFAULT_PORT, "")
    return _read("HOST", default, _parse_host, "host, host:port, :port or http://host:port")


def connect_url() -> str:
    """The URL a client reaches the daemon at, without a trailing slash; an unspecified address becomes loopback."""
    scheme, name, port, path = host()
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}{path}"


def _folder(name: str, default: Path) -> Path:
    text, _ = _text(name)
    return Path(text).expanduser().absolute() if text else default


def state_dir() -> Path:
    """Folder of logs, history and, by default, models: `~/.localllm`."""
    return _folder("STATE_DIR", Path.home() / ".localllm")


def models_dir() -> Path:
    """Folder of the model store: `~/.localllm/models`."""
    return _folder("MODELS", state_dir() / "models")


def cache_dir() -> Path:
    """Folder of compiled kernels and repacked weights; may be deleted at any time when nothing runs."""
    return _folder("CACHE_DIR", Path(platformdirs.user_cache_dir("localllm", appauthor=False)))


def _parse_size(text: str) -> int:
    if text.endswith("%"):
        return int(_disk_bytes(cache_dir()) * _parse_amount(text[:-1]) / 100)
    return _parse_bytes(text)


def _parse_bytes(text: str) -> int:
    number = text.upper().removesuffix("B").rstrip()
    amount, factor = _parse_amount(number.rstrip("KMGT")), _SIZE_FACTORS.get(number[-1:], 1)
    if factor == 1 and 0 < amount < FEWEST_BYTES:
        raise ValueError(text)
    return int(amount * factor)


def _parse_amount(text: str) -> float:
    amount = float(text)
    if not 0 <= amount < math.inf:
        raise ValueError(text)
    return amount


def _disk_bytes(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).total


def weight_cache_max() -> int:
    """Bytes that the repacked weights of all models may take in the cache folder."""
    expected = "a share of the disk such as 20%, a size such as 50GB, or bytes (100 or more)"
    size = _read("WEIGHT_CACHE_MAX", -1, _parse_size, expected)
    return _parse_size(_BY_NAME["WEIGHT_CACHE_MAX"].default) if size < 0 else size


def kv_disk() -> int:
    """Bytes that pages of KV caches, of all models, may take in the cache folder; 0 keeps none."""
    expected = "a share of the disk such as 5%, a size such as 10GB, or bytes (100 or more)"
    size = _read("KV_DISK", -1, _parse_size, expected)
    return _parse_size(_BY_NAME["KV_DISK"].default) if size < 0 else size


def keep_alive_ns() -> int:
    """Nanoseconds a model stays loaded after its last request; FOREVER_NS for a negative value."""
    expected = "a duration such as 5m, or a number of seconds"
    return _read("KEEP_ALIVE", 300 * NS_PER_S, _parse_keep_alive_ns, expected)


def load_timeout_s() -> float | None:
    """Seconds without progress after which loading is given up; None is never."""
    expected = "a duration such as 5m, or a number of seconds"
    timeout_ns = _read("LOAD_TIMEOUT", 300 * NS_PER_S, _parse_duration_ns, expected)
    return timeout_ns / NS_PER_S if timeout_ns > 0 else None


def num_parallel() -> int:
    """Requests one model serves at the same time, at least 1."""
    return _read("NUM_PARALLEL", 0, _parse_count, "a count") or AUTOMATIC_NUM_PARALLEL


def max_memory(total_bytes: int) -> int:
    """Bytes that all loaded models may take of the `total_bytes` that there are."""

    def parse(text: str) -> int:
        amount = int(total_bytes * _parse_amount(text[:-1]) / 100) if text.endswith("%") else _parse_bytes(text)
        if amount <= 0 < total_bytes:
            raise ValueError(text)
        return min(amount, total_bytes)

    expected = "a share of the memory such as 50%, a size such as 8GB, or bytes (100 or more)"
    return _read("MAX_MEMORY", parse(_BY_NAME["MAX_MEMORY"].default), parse, expected)


def max_loaded_models() -> int:
    """Models loaded at the same time; 0 leaves the choice to the scheduler."""
    return _read("MAX_LOADED_MODELS", 0, _parse_count, "a count")


def max_queue() -> int:
    """Requests that may wait before more are refused."""
    return _read("MAX_QUEUE", 512, _parse_count, "a count")


def tbt_target_ms() -> int:
    """Milliseconds between the tokens of an answer that prompts of others may stretch it to; 0 sets no bound."""
    return _read("TBT_TARGET_MS", 100, _parse_count, "a number of milliseconds")


def context_length() -> int:
    """Context length where neither model nor request sets num_ctx; 0 leaves the choice to the scheduler."""
    return _read("CONTEXT_LENGTH", 0, _parse_count, "a count of tokens")


def go_template() -> bool | None:
    """Whether a model's TEMPLATE counts where its GGUF has a chat template too; None leaves it to what each can do."""
    return _read("GO_TEMPLATE", None, _parse_bool, "1 or 0")


def num_threads() -> int:
    """Threads of a model; 0 leaves the choice to the runner."""
    return _read("NUM_THREADS", 0, _parse_count, "a count")


def _parse_kv_cache_type(text: str) -> str:
    if text.lower() not in KV_CACHE_TYPES:
        raise ValueError(text)
    return text.lower()


def kv_cache_type() -> str:
    """Type of the KV cache, one of KV_CACHE_TYPES."""
    return _read("KV_CACHE_TYPE", "f16", _parse_kv_cache_type, " or ".join(KV_CACHE_TYPES))


def origins() -> list[str]:
    """Origins allowed beside the built-in ones, in order."""
    text, _ = _text("ORIGINS")
    return [origin.strip() for origin in text.split(",") if origin.strip()]


def keys_path() -> Path:
    """The file of `localllm keys`, which a daemon heeds if it is there."""
    return state_dir() / "keys.json"


def api_keys() -> tuple[list[str], list[Path]]:
    """Keys that the daemon accepts, in plain text, and files of hashes beside `keys_path`.

    Raises: SettingError for a file that is not there; a key is never quoted.
    """
    text, full_name = _text("API_KEYS")
    words = [word.strip() for word in text.split(",") if word.strip()]
    paths = [Path(word[1:].strip()).expanduser().absolute() for word in words if word.startswith("@")]
    for path in paths:
        if not path.is_file():
            raise SettingError(f"{full_name}: there is no file {path}", hint=f"localllm keys add NAME --file {path}")
    return [word for word in words if not word.startswith("@")], paths


def api_key() -> str:
    """The key that the commands send, "" for none."""
    return _text("API_KEY")[0]


def tls_cert() -> Path | None:
    """The daemon's certificate chain, None for no TLS."""
    text, _ = _text("TLS_CERT")
    return Path(text).expanduser().absolute() if text else None


def tls_key() -> Path | None:
    """The key of the daemon's certificate."""
    text, _ = _text("TLS_KEY")
    return Path(text).expanduser().absolute() if text else None


def max_body() -> int:
    """Bytes of the largest body of a request."""
    return _read("MAX_BODY", 64 * 10**6, _parse_bytes, "a size such as 64MB, or bytes (100 or more)")


def max_upload() -> int:
    """Bytes of the largest file that may be uploaded."""
    return _read("MAX_UPLOAD", 512 * 10**6, _parse_bytes, "a size such as 512MB, or bytes (100 or more)")


def files_max() -> int:
    """Bytes that uploaded files and results of batches may take together."""
    return _read("FILES_MAX", 10 * 10**9, _parse_bytes, "a size such as 10GB, or bytes (100 or more)")


def _parse_positive_duration_s(text: str) -> float:
    duration_ns = _parse_duration_ns(text)
    if duration_ns <= 0:
        raise ValueError(text)
    return duration_ns / NS_PER_S


def client_timeout_s() -> float:
    """Seconds a client may take for a request's header, and pause in its body."""
    expected = "a positive duration such as 30s, or a number of seconds"
    return _read("CLIENT_TIMEOUT", 30.0, _parse_positive_duration_s, expected)


def max_connections() -> int:
    """Connections at the same time, at least 1."""
    return max(1, _read("MAX_CONNECTIONS", 1024, _parse_count, "a count"))


def debug() -> bool:
    """Whether to log more."""
    return _read("DEBUG", False, _parse_bool, "0 or 1")


def noprune() -> bool:
    """Whether blobs that no model uses are kept."""
    return _read("NOPRUNE", False, _parse_bool, "0 or 1")


def nohistory() -> bool:
    """Whether the REPL keeps no history."""
    return _read("NOHISTORY", False, _parse_bool, "0 or 1")


def editor() -> str:
    """The editor's command for long prompts, "" where none is set here."""
    return _text("EDITOR")[0]


_CHECKED: tuple[Callable[[], Any], ...] = (
    *(host, keep_alive_ns, load_timeout_s, num_parallel, max_loaded_models),
    *(max_queue, tbt_target_ms, context_length, num_threads, kv_cache_type, weight_cache_max, kv_disk),
    lambda: max_memory(1 << 40),
    *(api_keys, max_body, max_upload, files_max, client_timeout_s, max_connections),
)


def check() -> list[SettingError]:
    """Everything wrong with the environment: values that cannot be used, `LOCALLLM_` names that do not exist."""
    problems = []
    for read in _CHECKED:
        try:
            read()
        except SettingError as error:
            problems.append(error)
    known = [PREFIX + name for name in _BY_NAME]
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "localllm serve --help lists the variables"
            problems.append(SettingError(f"unknown environment variable: {name}", hint=hint))
    return problems
