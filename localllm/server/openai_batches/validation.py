"""What a batch's input must be: a JSON request a line, each with an id of its own; it knows nothing of models."""

import json
from pathlib import Path
from typing import Any

from localllm.server import go_json
from localllm.server.go_json import GoJSONError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_REQUESTS = 50_000
MAX_ERRORS = 100
MAX_LINE_BYTES = 64 * 10**6

Problem = dict[str, Any]


def validate(path: Path, endpoint: str) -> tuple[int, list[Problem]]:
    """How many requests the input holds, and what is wrong with it, at most MAX_ERRORS of {"code", "message", …}."""
    seen: set[str] = set()
    problems: list[Problem] = []
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            problem = _problem(line, endpoint, seen) if line.strip() else None
            if problem is not None:
                problems.append({**problem, "line": number})
            if len(problems) >= MAX_ERRORS or len(line) > MAX_LINE_BYTES or len(seen) > MAX_REQUESTS:
                break
    if not seen and not problems:
        problems.append(_told("empty_file", "the input file holds no requests"))
    if len(seen) > MAX_REQUESTS:
        problems.append(_told("too_many_tasks", f"a batch may hold {MAX_REQUESTS} requests"))
    return len(seen), problems


def _told(code: str, message: str, param: str | None = None) -> Problem:
    return {"code": code, "message": message, "param": param, "line": None}


def _problem(line: bytes, endpoint: str, seen: set[str]) -> Problem | None:
    if len(line) > MAX_LINE_BYTES:
        return _told("invalid_json_line", f"a line may have {MAX_LINE_BYTES} bytes")
    try:
        go_json.parse(line)  # bounds the depth
        request = json.loads(line)
    except (GoJSONError, ValueError) as error:
        return _told("invalid_json_line", f"not a JSON object: {error}")
    if not isinstance(request, dict):
        return _told("invalid_json_line", "not a JSON object")
    return _problem_of(request, endpoint, seen)


def _problem_of(request: dict[str, Any], endpoint: str, seen: set[str]) -> Problem | None:
    custom_id = request.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return _told("missing_required_parameter", "expected a text that is not empty", "custom_id")
    if custom_id in seen:
        return _told("duplicate_custom_id", "another line has the same custom_id", "custom_id")
    seen.add(custom_id)
    if request.get("method") != "POST":
        return _told("invalid_method", "expected POST", "method")
    if request.get("url") != endpoint:
        return _told("invalid_url", f"expected the batch's endpoint, {endpoint}", "url")
    if not isinstance(request.get("body"), dict):
        return _told("missing_required_parameter", "expected an object", "body")
    return None
