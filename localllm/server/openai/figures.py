"""Counts of tokens and log-probabilities in OpenAI's shapes; it knows nothing of the objects around them."""

import json
from dataclasses import dataclass
from typing import Any

from localllm.messages import Chunk, Done, Prefill, Stats
from localllm.server import inference
from localllm.server.inference import Asked, Turn

Entry = dict[str, Any]


@dataclass
class Usage:
    """Tokens of all choices; those of a prompt count once, however many answers it got."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    thinking: int = 0

    def add(self, stats: Stats, *, is_new_prompt: bool = True) -> None:
        """Count one answer."""
        self.completion += stats.eval_count
        self.thinking += stats.thinking_count
        if is_new_prompt:
            self.prompt += stats.prompt_eval_count
            self.cached += stats.prompt_eval_cached_count

    def record(self) -> dict[str, Any]:
        """The `usage` object of chats and completions."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.thinking},
        }


def reports(asked: Asked, done: Done, turn: Turn) -> dict[str, Any]:
    """What made the answer another than was asked for, in fields of our own: a prompt cut, a context made smaller,
    a constraint of which something could not be enforced."""
    final = inference.final_fields(asked, done, turn)
    return {name: final[name] for name in ("truncated", "context_length", "warnings") if name in final}


def prompt_progress(prefill: Prefill) -> dict[str, Any]:
    """How far a prompt is, as llama-server tells it; `processed` of its tokens includes those of the cache."""
    figures = {"total": prefill.total, "cache": prefill.cached, "processed": prefill.processed}
    return {**figures, "time_ms": round(prefill.elapsed_ns / 1e6, 3)}


def entries_of(chunk: Chunk) -> list[Entry]:
    """The log-probabilities of visible text: those of thinking and of tool calls belong to neither."""
    is_text = bool(chunk.text) or not (chunk.thinking or chunk.tool_calls)
    return [{**entry, "top_logprobs": entry.get("top_logprobs") or []} for entry in chunk.logprobs if is_text]


def legacy_logprobs(entries: list[Entry], offset: int) -> dict[str, list[Any]]:
    """The shape of /v1/completions; `offset` is the place of the first token, in characters."""
    lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for entry in entries:
        lists["tokens"].append(entry["token"])
        lists["token_logprobs"].append(entry["logprob"])
        top = {other["token"]: other["logprob"] for other in entry["top_logprobs"]}
        top.setdefault(entry["token"], entry["logprob"])
        lists["top_logprobs"].append(top)
        lists["text_offset"].append(offset)
        offset += len(entry["token"])
    return lists


def compact_json(value: Any) -> str:
    """JSON without blanks, as a text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def response_usage(stats: Stats) -> dict[str, Any]:
    """The `usage` object of responses."""
    return {
        "input_tokens": stats.prompt_eval_count,
        "input_tokens_details": {"cached_tokens": stats.prompt_eval_cached_count},
        "output_tokens": stats.eval_count,
        "output_tokens_details": {"reasoning_tokens": stats.thinking_count},
        "total_tokens": stats.prompt_eval_count + stats.eval_count,
    }
