"""`localllm warmup [MODEL...]`: compiles kernels, and repacks weights, before they are needed. It asks no server.

The work is done by a child process, `python -m localllm.runner.warmup_main`: this one imports nothing that takes long.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

import localllm
from localllm import env
from localllm.cli.arguments import UsageError
from localllm.cli.progress import show_progress
from localllm.cli.stored import resolve
from localllm.errors import LocalLLMError
from registry.store import ResolvedModel

USAGE = "[MODEL...]"
VARIABLES = ("MODELS", "CACHE_DIR", "WEIGHT_CACHE_MAX", "KV_CACHE_TYPE", "CPU")
COMMAND = (sys.executable, "-m", "localllm.runner.warmup_main")


def command(
    names: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    every: Annotated[bool, typer.Option("--all", help="Kernels for every type of weights.")] = False,
) -> None:
    """Compile what models need before they are first run: those named, whose weights are repacked as well, or without
    names all in the store."""
    if every and names:
        raise UsageError("either models or --all")
    models = [] if every else resolve(names or [])
    if not models and not every:
        raise LocalLLMError("there are no models to warm up", hint="`localllm pull MODEL` adds one; or use --all")
    request = {"all": every, "repack": bool(names), "models": [_spec(model) for model in models]}
    notes: list[str] = []
    show_progress(_updates(request | {"cache_dir": str(env.cache_dir()), "kv_cache_type": env.kv_cache_type()}, notes))
    for note in notes:
        print(note)


def _spec(model: ResolvedModel) -> dict[str, Any]:
    paths = [str(path) for path in model.model_paths]
    has_adapters = bool(model.adapter_paths)
    return {"name": model.name.short, "paths": paths, "digest": model.model_digest, "has_adapters": has_adapters}


def _updates(request: dict[str, Any], notes: list[str]) -> Iterator[dict[str, Any]]:
    """The child's progress; what it has to say at the end goes to `notes`. Raises: LocalLLMError."""
    # The working folder must let `-m` find this very package.
    home = Path(localllm.__file__).parent.parent
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=home)
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()  # and left open: its end would end the child
            for line in child.stdout:
                message = json.loads(line)
                if "error" in message:
                    raise LocalLLMError(message["error"], hint=message.get("hint"))
                if "note" in message:
                    notes.append(message["note"])
                else:
                    yield message
            if child.wait() != 0:
                raise LocalLLMError(f"warming up failed (exit status {child.returncode}): {_last_line(log)}")
        finally:
            child.kill()
            child.stdin.close()
            child.stdout.close()
            child.wait()


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    return (log.read().decode(errors="replace").splitlines() or [""])[-1]
