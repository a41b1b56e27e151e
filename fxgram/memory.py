"""How many bytes a step takes, from the sizes of its values: nothing is run."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import sympy
import torch
from torch import fx

from passes import SEEDS, WEIGHTS, Partition, Spec, tensors

aten = torch.ops.aten


def ordinary(lowered: fx.GraphModule, spec: Spec, samples: int) -> float:
    """Bytes that the ordinary forward and backward take: kept activations, and gradients."""
    gradients = sum(
        n.meta["val"].numel() * n.meta["val"].element_size()
        for n in lowered.graph.nodes
        if n.op == "placeholder" and n.name in spec.inputs and spec.inputs[n.name].trainable
    )
    return float(gradients + sum(nbytes(v, samples) for v in _activations(lowered)))


def _activations(gm: fx.GraphModule) -> list[torch.Tensor]:
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
    return list(found.values())


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


@functools.lru_cache(maxsize=None)
def _evaluator(expression: sympy.Expr):
    symbols = sorted(expression.free_symbols, key=str)
    return sympy.lambdify(symbols, expression, "math"), len(symbols)


def nbytes(value: torch.Tensor, samples: int) -> int:
    """Bytes of a tensor whose sizes may be symbolic in the number of samples."""
    total = value.element_size()
    for size in value.shape:
        if isinstance(size, torch.SymInt):
            evaluate, count = _evaluator(size.node.expr)
            size = evaluate(*[samples] * count)
        total *= int(size)
    return total
