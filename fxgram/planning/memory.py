"""How many bytes a step takes, from the sizes of its values: nothing is run."""

from dataclasses import dataclass

import torch
from torch import fx

from passes import SEEDS, WEIGHTS, Spec, dependents, nbytes, tensors

aten = torch.ops.aten


@dataclass(frozen=True)
class Memory:
    """Bytes that one step allocates at once, besides the model, its `.grad` and the batch."""

    forward: int  # peak while losses and Gramian are computed
    kept: int  # between them and `losses.backward`
    backward: int  # peak of `losses.backward`, gradients that had no `.grad` yet included
    ordinary: int  # what a plain forward and backward keep: activations and gradients

    @property
    def peak(self) -> int:
        """The most bytes at any time of the step."""
        return max(self.forward, self.backward)

    def __str__(self) -> str:
        rows = {
            "forward, with the Gramian": self.forward,
            "kept for the backward": self.kept,
            "backward": self.backward,
            "ordinary forward and backward": self.ordinary,
        }
        return "\n".join(f"{name:<30} {size / 2**20:10.1f} MiB" for name, size in rows.items())


def rows_at_once(captured: fx.GraphModule, samples: int, limit: int) -> int:
    """How many losses may go backward at once, each with cotangents of all values, within a limit.

    One at least. Fewer than all of them cost calls, not arithmetic.
    """
    values = [v for n in captured.graph.nodes for v in tensors(n.meta.get("val"))
              if n.op != "placeholder" and v.is_floating_point()]  # fmt: skip
    each = sum(nbytes(v, samples) for v in values)
    return max(1, limit // max(2 * each, 1))  # a cotangent, and what it is made from


def ordinary(lowered: fx.GraphModule, spec: Spec, samples: int) -> float:
    """Bytes that the ordinary forward and backward take: kept activations, and gradients."""
    gradients = sum(
        n.meta["val"].numel() * n.meta["val"].element_size()
        for n in lowered.graph.nodes
        if n.op == "placeholder" and n.name in spec.inputs and spec.inputs[n.name].trainable
    )
    activations = _activations(lowered).values()
    return float(gradients + sum(nbytes(v, samples) for v in activations))


def freed(lowered: fx.GraphModule, samples: int) -> float:
    """Bytes of activations that no weight gradient reads: gone once the cotangents exist."""
    weights = next(n for n in lowered.graph.nodes if n.name == WEIGHTS)
    late = dependents(lowered.graph, weights)
    read = {storage(n) for node in late for n in node.all_input_nodes}
    activations = _activations(lowered).items()
    return float(sum(nbytes(v, samples) for node, v in activations if node not in read))


def _activations(gm: fx.GraphModule) -> dict[fx.Node, torch.Tensor]:
    """Values of the forward that the backward reads, one for each storage."""
    backward: set[fx.Node] = set()
    found: dict[fx.Node, torch.Tensor] = {}
    for node in gm.graph.nodes:
        if node.op == "output" or node.meta.get("emitted"):
            continue
        inputs = node.all_input_nodes
        if node.name in (SEEDS, WEIGHTS) or any(n in backward for n in inputs):
            backward.add(node)
            for source in (storage(n) for n in inputs):
                if source not in backward and source.op != "placeholder":
                    for value in tensors(source.meta.get("val")):
                        found[source] = value
    return found


def storage(node: fx.Node) -> fx.Node:
    """The node that allocated what this one shows: views, and items of tuples, share memory."""
    while True:
        base = _viewed(node)
        if base is None:
            return node
        node = base


def _viewed(node: fx.Node) -> fx.Node | None:
    if node.op != "call_function" or not node.all_input_nodes:
        return None
    if node.target in (aten.reshape.default, aten.contiguous.default, aten.to.dtype):
        source = node.args[0]
        return source if source.meta["val"].dtype == node.meta["val"].dtype else None
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns:
        return None
    if schema.returns[0].alias_info is not None and not schema.is_mutable:
        return node.all_input_nodes[0]
    return None
