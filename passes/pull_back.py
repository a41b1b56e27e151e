"""Pull factors back through products of parameters, `w + s * b @ a`, and keep them factors."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from passes.annotations import operator_name
from passes.factors import Factors
from passes.operands import Emitter
from passes.sites import UseGroup

aten = torch.ops.aten
_SWAPS = {"t", "numpy_T", "mT", "transpose", "swapaxes", "swapdims", "permute"}


def pull_back(
    emitter: Emitter, group: UseGroup, operand: fx.Node, factors: Factors, values: Mapping[str, Any]
) -> list[Factors] | None:
    """Factors of each use of a group, from those of the value `operand` at its sites.

    `w + b @ a` in a linear layer, `"kso,ksi->oi"` of (B, A): `a [r, i]` gets `"ksr,ksi->ri"` of
    (B b, A), and `b [o, r]` gets `"kso,ksr->or"` of (B, A aᵀ). No per-sample gradient of the size
    of `w` is made. None if the arithmetic is of another kind, or a value is read more than once.
    """
    if factors.one_hot is not None:
        return None
    found = []
    for use in group.uses:
        path = _path(use, operand, group)
        pulled: Factors | None = None if path is None else factors
        for source, node in reversed(path or ()):
            pulled = pulled and _through(emitter, node, source, pulled, values)
        if pulled is None:
            return None
        found.append(pulled)
    return found


def _path(use: fx.Node, operand: fx.Node, group: UseGroup) -> list[tuple[fx.Node, fx.Node]] | None:
    """The steps `(value, operator that reads it)` from a use to the value at the sites."""
    steps, node = [], use
    while node is not operand:
        users = [user for user in node.users if user in group.region]
        if len(users) != 1 or users[0].args.count(node) != 1:  # `w @ w` is not linear in w
            return None
        steps.append((node, users[0]))
        node = users[0]
    return steps


def _through(
    emitter: Emitter, node: fx.Node, source: fx.Node, factors: Factors, values: Mapping[str, Any]
) -> Factors | None:
    """Factors of `source` from those of `node`, an operator that is linear in it."""
    if not all(isinstance(n.meta["val"], torch.Tensor) for n in (source, node)):
        return None  # chunks, or values and indices
    name, (before, after) = operator_name(node), (_shape(source), _shape(node))
    first, two = node.args[0] is source, len(node.args) == 2
    if name in ("add", "sub") and two and before == after:
        scale = 1 if first else node.kwargs.get("alpha", 1) * (-1 if name == "sub" else 1)
        return _scaled(emitter, factors, aten.mul.Tensor, scale)
    if name in ("mul", "div") and two and before == after and (first or name == "mul"):
        other = node.args[1 if first else 0]
        target = aten.mul.Tensor if name == "mul" else aten.div.Tensor
        return None if isinstance(other, fx.Node) else _scaled(emitter, factors, target, other)
    labels = _labels(factors, after)
    if labels is None:
        return None
    if name in _SWAPS:
        return _swapped(factors, labels, node)
    if name in ("mm", "matmul") and len(before) == len(after) == 2:
        other = values[node.args[1 if first else 0].name]
        return _product(emitter, factors, labels, other, first)
    return None


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _labels(factors: Factors, shape: tuple[int, ...]) -> str | None:
    """One label for each dim; None if some were left out."""
    result = factors.equation.split("->")[1]
    return result if len(result) == len(shape) else None


def _scaled(emitter: Emitter, factors: Factors, target: Any, scale: Any) -> Factors:
    if scale == 1:
        return factors
    first, *others = factors.operands
    return replace(factors, operands=(emitter.call(target, first, scale), *others), kernels=())


def _swapped(factors: Factors, labels: str, node: fx.Node) -> Factors:
    """`y = x.permute(order)`: label the dims of `x`."""
    dims = range(len(labels))
    numbered = torch.empty([2 + d for d in dims], device="meta")  # sizes tell the dims apart
    moved = node.target(numbered, *node.args[1:], **node.kwargs).shape
    before = "".join(labels[moved.index(2 + d)] for d in dims)
    return replace(factors, equation=f"{factors.equation.split('->')[0]}->{before}", kernels=())


def _product(
    emitter: Emitter, factors: Factors, labels: str, other: fx.Node, left: bool
) -> Factors | None:
    """`y[o, i] = sum_r x[o, r] z[r, i]`: contract `i` with `z` in the factor that has it."""
    terms = factors.equation.split("->")[0].split(",")
    gone = labels[1] if left else labels[0]
    holders = [at for at, term in enumerate(terms) if gone in term]
    if len(holders) != 1:
        return None
    at = holders[0]
    new = next(c for c in "rpqzuvwxy" if c not in factors.equation)
    theirs = new + gone if left else gone + new
    term = terms[at].replace(gone, new)
    operands = list(factors.operands)
    equation = f"{terms[at]},{theirs}->{term}"
    operands[at] = emitter.call(torch.einsum, equation, operands[at], other)
    terms[at] = term
    equation = f"{','.join(terms)}->{labels.replace(gone, new)}"
    return replace(factors, equation=equation, operands=tuple(operands), kernels=())
