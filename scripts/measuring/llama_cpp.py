"""Times llama.cpp by its own benchmark programs; it knows their options and what they print."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from measuring.figures import Figure
from measuring.ours import TOGETHER_PROMPT, TOGETHER_TOKENS

PROGRAMS = ("llama-bench", "llama-batched-bench")


class LlamaCpp:
    """A folder that holds a native build's `llama-bench` and `llama-batched-bench`; implements `Side`."""

    def __init__(self, folder: str, model: str, n_threads: int, n_tokens: int) -> None:
        self._folder, self._model = Path(folder), model
        self._n_threads, self._n_tokens = n_threads, n_tokens
        for name in PROGRAMS:
            if not (self._folder / name).is_file():
                raise SystemExit(f"Error: {self._folder} holds no {name}\nhint: --llama-cpp takes the folder of both")

    def measure(self, figure: Figure) -> float:
        """Tokens a second, once; the program warms up by itself."""
        if figure.kind == "prefill":
            return self._bench(figure.kv, "-p", figure.n, "-n", 0)
        if figure.kind == "decode":
            return self._bench(figure.kv, "-p", 0, "-n", self._n_tokens, "-d", figure.n)
        return self._batched(figure)

    def one_token(self) -> list[str]:
        """The command that loads the model and decodes one token."""
        return self._command("llama-bench", "-p", 0, "-n", 1, "-r", 1, "--no-warmup", "-o", "json")

    def _bench(self, kv: str, *args: str | int) -> float:
        found = self._run(*self._command("llama-bench", "-r", 1, "-o", "json", *args, *_kv_options(kv, "1")))
        return float(json.loads(found)[-1]["avg_ts"])

    def _batched(self, figure: Figure) -> float:
        each = "-npp", TOGETHER_PROMPT, "-ntg", TOGETHER_TOKENS
        room = figure.n * (TOGETHER_PROMPT + TOGETHER_TOKENS)
        how = "-tb", self._n_threads, "-c", room, "--output-format", "jsonl"
        command = self._command("llama-batched-bench", "-npl", figure.n, *each, *how, *_kv_options(figure.kv, "on"))
        return float(json.loads(self._run(*command).strip().splitlines()[-1])["speed_tg"])

    def _command(self, program: str, *args: str | int) -> list[str]:
        always = "-m", self._model, "-t", self._n_threads
        return [str(self._folder / program), *map(str, (*always, *args))]

    @staticmethod
    def _run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"Error: {' '.join(command)}: exit status {done.returncode}\n{done.stderr[-1000:]}")
        return done.stdout


def _kv_options(kv: str, on: str) -> tuple[str, ...]:
    """A quantised KV cache needs llama.cpp's flash attention; with f16 it chooses by itself."""
    return () if kv == "f16" else ("-ctk", kv, "-ctv", kv, "-fa", on)
