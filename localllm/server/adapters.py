"""The LoRA adapters of a request: from what it asks for to what the runner is told; it knows no endpoint.

A request names models in the store whose adapters are meant: `lora: [{"name": "my-lora", "scale": 0.5}]`. Without the
field a model's own adapters are in force; with an empty list none are. Whether an adapter fits the model is for
the runner to see, by its architecture and its shapes: a base of another quantisation is as good.
"""

from typing import Any

from localllm.server import lookup
from localllm.server.binding import Judged, List, String, Struct, Type
from localllm.server.daemon import Daemon
from localllm.server.errors import APIError
from registry.store import ResolvedModel

MAX_SCALE = 1e6
MAX_ENTRIES = 64
"""Each is looked up in the store, before the runner sees how many adapters they come to."""


def _scale(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) <= MAX_SCALE:  # a NaN is not, and what no float holds
        raise ValueError(f"expected a number in -{MAX_SCALE:g}..{MAX_SCALE:g}, not {str(value)[:40]}")
    return float(value)


FIELD: Type = List(
    Struct("api.LoRA", {"name": String(), "scale": Judged(_scale, default=1.0, shape={"type": "number"})}),
    go_name="[]api.LoRA",
)
"""The field `lora` of requests."""


async def adapters_of(
    daemon: Daemon, model: ResolvedModel, wanted: list[dict[str, Any] | None] | None
) -> list[dict[str, Any]]:
    """The adapters in force, as ModelSpec has them; `wanted` is the bound field.

    Raises: APIError with status 400 or 404, InvalidNameError.
    """
    if wanted is None:
        return lookup.model_spec(model).adapters
    if len(wanted) > MAX_ENTRIES:
        raise APIError(400, f"lora: at most {MAX_ENTRIES} entries, not {len(wanted)}")
    return [adapter for item in wanted for adapter in await _adapters(daemon, item)]


async def _adapters(daemon: Daemon, item: dict[str, Any] | None) -> list[dict[str, Any]]:
    name = (item or {}).get("name", "").strip()
    if item is None or not name:
        raise APIError(400, 'lora: each entry needs the "name" of a model with an adapter')
    found = await lookup.resolve(daemon, lookup.model_name(name), name)
    own = lookup.model_spec(found).adapters
    if not own:
        raise APIError(400, f"lora: model '{name}' has no adapter", hint="create one with ADAPTER in a Modelfile")
    return [{**adapter, "scale": adapter["scale"] * item["scale"]} for adapter in own]
