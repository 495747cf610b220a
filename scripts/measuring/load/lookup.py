"""Answers that repeat much of their prompt, code that is to be edited: what guessing the next tokens from it gains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import process
from measuring.load.rounds import Figures
from measuring.servers import Daemon

EDITS = (
    'Rename the class "Ended" to "Finished".',
    'Rename the variable "done" to "child" in the function "run".',
    'Rename the function "main" to "run_from_command_line".',
    'Add the parameter "cwd: str | None = None" to the function "run".',
)
GREEDY, SAMPLED = {"temperature": 0}, {"temperature": 0.8, "seed": 11}


class UnequalError(Exception):
    """Guessing has changed an answer."""


@dataclass(frozen=True)
class Lookup:
    """The answer has at most `n_output` tokens; greedy, or drawn where it `is_sampled`."""

    n_output: int = 400
    is_sampled: bool = False

    def run(self, daemon: Daemon, model: str, i: int) -> Figures:
        """Round i: tokens a second of decoding without guesses and with them. Raises: UnequalError."""
        if i % 2:
            plain, guessed = self._ask(daemon, model, i, draft_num_predict=0), self._ask(daemon, model, i)
        else:
            guessed, plain = self._ask(daemon, model, i), self._ask(daemon, model, i, draft_num_predict=0)
        if plain["message"] != guessed["message"] or plain["eval_count"] != guessed["eval_count"]:
            raise UnequalError(f"round {i}: {guessed['message']} instead of {plain['message']}")
        n_guessed = guessed.get("draft_count", 0)
        return {
            "plain_tokens_per_s": _rate(plain),
            "tokens_per_s": _rate(guessed),
            "lookup": _rate(guessed) / _rate(plain),
            "tokens": guessed["eval_count"],
            "guessed": n_guessed,
            "accepted": guessed.get("draft_accepted_count", 0) / max(1, n_guessed),
        }

    def _ask(self, daemon: Daemon, model: str, i: int, **more: int) -> dict[str, Any]:
        code = Path(process.__file__).read_text()
        question = f"```python\n{code}```\n\n{EDITS[i % len(EDITS)]} Answer with the whole file."
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "```python\n"}]
        sampling = SAMPLED if self.is_sampled else GREEDY
        options = {"num_predict": self.n_output, "ignore_eos": True, **sampling, **more}
        return daemon.post("/api/chat", {"model": model, "messages": messages, "options": options})


def _rate(answer: dict[str, Any]) -> float:
    return float(1e9 * answer["eval_count"] / answer["eval_duration"])
