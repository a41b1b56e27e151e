"""Emit what follows from factors alone: per-sample gradients, sums, concatenations."""

from dataclasses import replace

import torch
from torch import fx

from passes.factors import Factors
from passes.kernels import per_sample_gradients, promoted
from passes.operands import Emitter

aten = torch.ops.aten


def emit_jacobian(emitter: Emitter, factors: Factors) -> fx.Node:
    """Emit the per-sample gradients `[k, ...]` of a value from its factors."""
    sizes = factors.sizes()
    labels = "k" + factors.equation.split("->")[1]
    values = [operand.meta["val"] for operand in factors.operands]
    dtype = promoted(values)
    val = values[-1].new_empty([sizes[label] for label in labels], dtype=dtype)
    return emitter.call(
        per_sample_gradients, factors.equation, factors.one_hot, *factors.operands, val=val
    )


def concatenate(emitter: Emitter, factors: list[Factors]) -> list[Factors]:
    """Merge factors with equal labels along their positions: `s = s1 + s2 + ...`."""
    alike: dict[tuple, list[Factors]] = {}
    for one in factors:
        alike.setdefault((one.equation, one.one_hot), []).append(one)
    merged = []
    for several in alike.values():
        operands = [
            parts[0] if len(parts) == 1 else emitter.call(aten.cat.default, list(parts), 1)
            for parts in zip(*(f.operands for f in several))
        ]
        merged.append(replace(several[0], operands=tuple(operands)))
    return merged


def add_up(emitter: Emitter, nodes: list[fx.Node]) -> fx.Node:
    """Sum of tensors of one shape."""
    total = nodes[0]
    for node in nodes[1:]:
        total = emitter.call(aten.add.Tensor, total, node, val=total.meta["val"])
    return total
