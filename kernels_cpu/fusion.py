"""Which operations of a graph are computed together, and in which order; it knows neither memory nor threads.

Nodes that belong together become one step of the lowering, at the place of their first node:

    linear + add               the addition becomes the product's epilogue
    rms_norm + add + rms_norm  a norm after a product, the addition to the residual, the norm before the next product:
                               any of them may be missing
    add_vector + add + layer_norm
                               the same with other norms: any of them may be missing
    head_norm + rope

Products that read the same value come right after one another, so that what they wait for is waited for once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernels_cpu.graph import Graph, Node, Value


@dataclass(frozen=True, eq=False)
class Step:
    """Operations that are lowered together: `op` names the way, `nodes` gives each its part in it."""

    op: str
    nodes: dict[str, Node]

    @property
    def inputs(self) -> list[Value]:
        """The values that it reads and does not make."""
        made = [node.output for node in self.nodes.values()]
        return [value for node in self.nodes.values() for value in node.inputs if value not in made]


def readers_of(graph: Graph) -> dict[Value, list[Node]]:
    """For each value the nodes that read it, once for each of their operands."""
    readers: dict[Value, list[Node]] = {node.output: [] for node in graph.nodes}
    for node in graph.nodes:
        for value in node.inputs:
            readers[value].append(node)
    return readers


def steps_of(graph: Graph) -> list[Step]:
    """The graph as steps, in an order in which they can run."""
    return list(_siblings_together(list(_fused(graph))))


def _fused(graph: Graph) -> Iterator[Step]:
    readers, done = readers_of(graph), set[Node]()

    def only_reader(node: Node, op: str) -> Node | None:
        """The one node that reads the result of `node`, if it is an `op` whose other operands exist already."""
        found = readers[node.output]
        if len(found) != 1 or found[0].op != op or node.output is graph.logits:
            return None
        others = (value for value in found[0].inputs if value is not node.output)
        return found[0] if all(value.index < node.output.index for value in others) else None

    for node in graph.nodes:
        if node not in done:
            step = _step_from(node, only_reader, readers)
            done.update(step.nodes.values())
            yield step


def _step_from(node: Node, only_reader, readers: dict[Value, list[Node]]) -> Step:  # type: ignore[no-untyped-def]
    """The step that begins with a node."""
    if node.op == "linear":
        return _step("linear", linear=node, add=only_reader(node, "add"))
    if node.op == "head_norm":
        return _step("heads", head_norm=node, rope=only_reader(node, "rope"))
    if node.op == "rope":
        return _step("heads", rope=node)
    if node.op == "rms_norm":
        add = only_reader(node, "add")
        if add is None:
            return _step("rows", norm=node)
        return _step("rows", norm_before=node, add=add, norm=_norm_of(add, readers))
    if node.op in ("add_vector", "layer_norm"):
        return _layer_rows(node, only_reader, readers)
    if node.op == "add":
        norm = _norm_of(node, readers, "layer_norm")
        return (
            _step("layer_rows", add=node, norm=norm) if norm else _step("rows", add=node, norm=_norm_of(node, readers))
        )
    return _step(node.op, node=node)


def _layer_rows(node: Node, only_reader, readers: dict[Value, list[Node]]) -> Step:  # type: ignore[no-untyped-def]
    if node.op == "layer_norm":
        return _step("layer_rows", norm=node)
    add = only_reader(node, "add")
    return _step("layer_rows", shift=node, add=add, norm=_norm_of(add or node, readers, "layer_norm"))


def _step(op: str, **nodes: Node | None) -> Step:
    return Step(op, {part: node for part, node in nodes.items() if node is not None})


def _norm_of(node: Node, readers: dict[Value, list[Node]], op: str = "rms_norm") -> Node | None:
    return next((reader for reader in readers[node.output] if reader.op == op), None)


def is_plain_product(step: Step) -> bool:
    """Whether a step is a product without an addition."""
    return step.op == "linear" and "add" not in step.nodes


def _siblings_together(steps: list[Step]) -> Iterator[Step]:
    """Brings forward the products that read what an earlier one reads; they need nothing else."""
    siblings: dict[Value, list[Step]] = {}
    for step in filter(is_plain_product, steps):
        siblings.setdefault(step.inputs[0], []).append(step)
    done = set[Step]()
    for step in steps:
        if step not in done:
            group = siblings[step.inputs[0]] if is_plain_product(step) else [step]
            done.update(group)
            yield from group
