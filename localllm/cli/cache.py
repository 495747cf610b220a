"""`localllm cache`: what is kept so that models start at once, and its removal. It asks no server."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Annotated

import typer

from kernels_cpu import cache_files
from kernels_cpu.cache_files import KERNELS, OF_MODELS, PREFIXES, TOKENIZERS, WEIGHTS, CacheEntry
from kernels_cpu.prefix_files import prune_prefixes
from localllm import env
from localllm.cli.arguments import UsageError
from localllm.cli.columns import format_columns
from localllm.cli.human import format_bytes, format_time
from localllm.cli.stored import digest_of, names_by_digest

HEADER = ("KIND", "MODEL", "ID", "SIZE", "USED", "STATE")
MIN_ID_LENGTH = 6

USAGE = "[clear [MODEL...] | prune]"
VARIABLES = ("CACHE_DIR", "WEIGHT_CACHE_MAX", "KV_DISK", "MODELS")


def command(
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    weights: Annotated[bool, typer.Option("--weights", help="clear: the repacked weights.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="clear: the compiled kernels.")] = False,
    tokenizers: Annotated[bool, typer.Option("--tokenizers", help="clear: what tokenizers computed.")] = False,
    prefixes: Annotated[bool, typer.Option("--prefixes", help="clear: what models made of prompts.")] = False,
) -> None:
    """Show what is kept so that models start and answer at once; clear it, or prune what is stale, old or too much.

    All of it is made anew when it is needed. `clear` takes everything, the kinds or the models that are named.
    """
    action, *models = words or ["list"]
    flags = {WEIGHTS: weights, KERNELS: kernels, TOKENIZERS: tokenizers, PREFIXES: prefixes}
    kinds = [kind for kind in cache_files.KINDS if flags[kind]] or list(cache_files.KINDS)
    if action not in ("list", "clear", "prune"):
        raise UsageError(f'unknown action "{action}"', hint="`localllm cache --help` shows the usage")
    if action != "clear" and (models or len(kinds) < len(cache_files.KINDS)):
        raise UsageError("models and kinds are for `localllm cache clear`")
    if action == "list":
        _print(cache_files.entries(env.cache_dir()))
    elif action == "prune":
        _tell(_prune(), [])
    else:
        _clear(kinds, models)


def _prune() -> list[CacheEntry]:
    """Old and surplus entries, and all that the code of today does not use."""
    gone = cache_files.prune(env.cache_dir(), env.weight_cache_max())
    stale = [entry for entry in cache_files.entries(env.cache_dir()) if entry.is_stale]
    gone += [entry for entry in stale if cache_files.remove(entry)]
    return gone + _prune_prefixes()


def _prune_prefixes() -> list[CacheEntry]:
    """What old and surplus pages took of each model."""
    before = [entry for entry in cache_files.entries(env.cache_dir()) if entry.kind == PREFIXES]
    prune_prefixes(env.cache_dir(), env.kv_disk(), cache_files.UNUSED_S)
    left = {entry.path: entry.n_bytes for entry in cache_files.entries(env.cache_dir())}
    freed = [replace(entry, n_bytes=entry.n_bytes - left.get(entry.path, 0)) for entry in before]
    return [entry for entry in freed if entry.n_bytes]


def _clear(kinds: list[str], models: list[str]) -> None:
    found = [entry for entry in cache_files.entries(env.cache_dir()) if entry.kind in kinds]
    if models:
        if not set(kinds) <= set(OF_MODELS) and len(kinds) < len(cache_files.KINDS):
            raise UsageError("of a single model only weights and prefixes are kept: name no other kind")
        found = [entry for model in models for entry in _of_model(model, found)]
    removed = [entry for entry in found if cache_files.remove(entry)]
    _tell(removed, [entry for entry in found if entry not in removed])


def _of_model(model: str, found: list[CacheEntry]) -> list[CacheEntry]:
    """What is of a model, named as in the store or by the ID of the list. Raises: UsageError."""
    digest = digest_of(model)
    if digest is None and len(model) >= MIN_ID_LENGTH:
        digest = next((e.key for e in found if e.kind in OF_MODELS and e.key.startswith(model.lower())), None)
    if digest is None:
        raise UsageError(f"model '{model}' not found", hint="`localllm cache` shows what is kept")
    return [entry for entry in found if entry.kind in OF_MODELS and entry.key == digest]


def _tell(removed: Sequence[CacheEntry], left: Sequence[CacheEntry]) -> None:
    print(f"removed {len(removed)} of {len(removed) + len(left)}, {format_bytes(sum(e.n_bytes for e in removed))}")
    if left:
        print(f"left {len(left)} that are in use or cannot be removed")


def _print(found: list[CacheEntry]) -> None:
    names: dict[str, list[str]] = {}
    if any(entry.kind in OF_MODELS for entry in found):
        with contextlib.suppress(OSError):
            names = names_by_digest()
    now = datetime.now(timezone.utc)
    rows = [_row(entry, names, now) for entry in found if entry.n_bytes]  # a folder for prefixes may wait for its first
    total = ("total", "", "", format_bytes(sum(entry.n_bytes for entry in found)), "", "")
    print(format_columns([HEADER, *rows, total]), end="")


def _row(entry: CacheEntry, names: dict[str, list[str]], now: datetime) -> tuple[str, ...]:
    model = ", ".join(names.get(entry.key, ["-"])) if entry.kind in OF_MODELS else ""
    used = format_time(datetime.fromtimestamp(entry.last_used_s, timezone.utc), now)
    state = "stale" if entry.is_stale else ""
    return entry.kind, model, entry.key[:12], format_bytes(entry.n_bytes), used, state
