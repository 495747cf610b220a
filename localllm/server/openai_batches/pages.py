"""Lists in pages, as OpenAI's endpoints give them; it knows nothing of what they list."""

from typing import Any

from starlette.requests import Request

from localllm.server.binding import Int, String, Type
from localllm.server.errors import APIError

MAX_LIMIT = 10_000
DEFAULT_LIMIT = 20
PAGE: dict[str, Type] = {"limit": Int(), "after": String(), "order": String()}
"""The query's parameters."""


def page(items: list[dict[str, Any]], request: Request) -> dict[str, Any]:
    """The page that a query asks for of `items`, newest first. Raises: APIError with status 400."""
    query = request.query_params
    if query.get("order", "desc") not in ("asc", "desc"):
        raise APIError(400, f'order: expected "asc" or "desc", not "{query["order"]:.80}"')
    if query.get("order") == "asc":
        items = items[::-1]
    after = query.get("after")
    if after:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise APIError(400, f'after: there is no "{after:.80}" in this list')
        items = items[ids.index(after) + 1 :]
    limit = _limit(query.get("limit", ""))
    data = items[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(items) > limit,
    }


def _limit(text: str) -> int:
    if not text:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_LIMIT):
        raise APIError(400, f'limit: expected 1 to {MAX_LIMIT}, not "{text:.80}"')
    return int(text)
