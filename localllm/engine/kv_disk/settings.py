"""What the disk tier is made for, and the text that says what the bytes of a page depend on."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localllm import models

VARIANT_DIGITS = 16


@dataclass(frozen=True)
class DiskSettings:
    """`cache_dir` is the cache folder, `model_digest` that of the model's file. The pages of all models may take
    `max_bytes` together (0: nothing is read or written)."""

    cache_dir: Path
    model_digest: str
    max_bytes: int


@functools.cache
def _models_digest() -> str:
    """Changes with the code that makes graphs of models."""
    h = hashlib.sha256()
    for path in sorted(Path(models.__file__).parent.rglob("*.py")):
        h.update(path.name.encode() + b"\0" + path.read_bytes())
    return h.hexdigest()


def identity_of(settings: DiskSettings, kv_identity: str, kv_cache_type: str) -> str:
    """All that keys and values depend on beside the adapters and the tokens."""
    what = (1, settings.model_digest, kv_cache_type, kv_identity, _models_digest(), np.__version__)
    return hashlib.sha256(repr(what).encode()).hexdigest()
