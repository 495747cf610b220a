"""How often the threads of a step wait for each other, for each architecture; a slow core makes all wait each time."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from kernels_cpu.graph import Graph
from kernels_cpu.ops import OWN_ROWS
from kernels_cpu.tape import Lowering, TapeSizes
from kernels_cpu.waiting import TapeWriter
from localllm.gguf import open_gguf
from localllm.models import build

N_LAYER = 2

# After the products of queries, keys and values; after rotation and cache; after attention; after its projection; after
# the activation; after the feed-forward.
FEW = 6
# With many rows also after each norm, and around the quantising of attention's result where weights are quantised. The
# norm before the head adds one to the sum of the layers, the choice of output rows another where it is what comes
# between attention and its projection.
MANY, MANY_QUANTISED = 8 * N_LAYER + 2, 9 * N_LAYER + 1


class NoWeights:
    """Stands for packed weights, of which lowering asks only where they are."""

    nbytes = 0

    def address(self, name: str) -> int:
        return 0


def lowered(graph: Graph) -> TapeWriter:
    lowering = Lowering(graph, NoWeights(), TapeSizes(128, 96, 1, 8), 2)  # type: ignore[arg-type]
    lowering.run()
    return lowering.writer


@pytest.mark.parametrize(
    ("name", "many"),
    [
        ("llama-dense", MANY),
        ("qwen2-dense", MANY),
        ("qwen3-dense", MANY),
        ("gemma2-dense", MANY),
        ("gemma3-dense", MANY),
        ("llama-dense.q8_0", MANY_QUANTISED),
        ("gemma3-dense.q8_0", MANY_QUANTISED),
    ],
)
def test_barriers_of_a_layer(name: str, many: int, parity_models: ModuleType, tmp_path: Path) -> None:
    with open_gguf(parity_models.make(name, tmp_path / "model.gguf")) as file:
        writer = lowered(build(file).graph)
    # The end of the step, which is waited for in any case, takes the place of the last layer's last barrier.
    assert writer.n_barriers(1) == writer.n_barriers(OWN_ROWS) == FEW * N_LAYER
    assert writer.n_barriers(OWN_ROWS + 1) == many
