"""Values with two dims of samples: whose gradient flows tells which of them is the sample axis.

`logits = q @ keys.t()` is `[K, K]`. If the keys carry no gradient, what row k receives reaches
sample k alone, and dim 0 is the sample axis: sizes cannot tell, the operator has to.
"""

import operator
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx

from passes.annotations import SampleAxis, note
from passes.folds import size_of
from passes.schema import arguments
from passes.spec import tensors
from passes.targets import overload

# Dims keep their places, counted from the end; one that `dim` names is mixed.
_KEEP = {"to", "_to_copy", "contiguous", "clone", "alias", "dropout", "masked_fill", "expand",
         "softmax", "log_softmax", "gather", "cat", "concat", "slice", "narrow", "topk", "sort",
         "cumsum", "logcumsumexp", "where"}  # fmt: skip
_REDUCE = {"sum", "mean", "amax", "amin", "max", "min", "logsumexp", "prod", "var", "std", "norm",
           "linalg_vector_norm", "select"}  # fmt: skip
_PRODUCTS = {"mm": ("self", "mat2"), "bmm": ("self", "mat2"), "matmul": ("self", "other"),
             "cdist": ("x1", "x2")}  # fmt: skip
_OF_CLASSES = {"cross_entropy_loss", "nll_loss", "nll_loss_nd"}


def batch_dims(value: torch.Tensor, samples: sympy.Expr) -> list[int]:
    """The dims whose size has the number of samples in it."""
    return [d for d, size in enumerate(value.shape) if size_of(size).has(samples)]


def is_crossed(node: fx.Node, samples: sympy.Expr) -> bool:
    """Whether an operand that carries gradient has several such dims."""
    return any(
        len(batch_dims(value, samples)) > 1
        for operand in node.all_input_nodes
        if note(operand).grad
        for value in tensors(operand.meta.get("val"))
    )


def crossed(node: fx.Node, value: torch.Tensor) -> SampleAxis | None:
    """The sample axis of `value`, an output of `node`, if the operator is known to keep it."""
    carriers = [n for n in node.all_input_nodes if note(n).grad and note(n).batched]
    found = [_through(node, value, carrier) for carrier in carriers]
    return found[0] if found and all(axis == found[0] for axis in found) else None


def _through(node: fx.Node, value: torch.Tensor, carrier: fx.Node) -> SampleAxis | None:
    """Where the sample axis of one operand is in the output; None if it is mixed or unknown."""
    axes = note(carrier).axes
    if node.target is operator.getitem:
        return dict(enumerate(axes)).get(node.args[1])
    if len(axes) != 1 or axes[0] is None or axes[0].dim is None:
        return None
    dim = _moved(node, carrier, axes[0].dim, value.ndim)
    return None if dim is None else replace(axes[0], dim=dim)


def _moved(node: fx.Node, carrier: fx.Node, dim: int, after: int) -> int | None:
    """Which dim of the output dim `dim` of the operand becomes."""
    name, given = getattr(node.target, "_opname", ""), arguments(node)
    before = carrier.meta["val"].ndim
    along = _dims(given.get("dim"), before)
    if torch.Tag.pointwise in getattr(overload(node), "tags", ()) or name in _KEEP:
        mixed = dim in along and name not in ("expand", "where")
        return None if mixed else dim + after - before
    if name in _REDUCE:
        along = along or set(range(before))
        lost = 0 if given.get("keepdim") else sum(d < dim for d in along)
        return None if dim in along else dim - lost
    if name in _PRODUCTS:
        return _of_product(*(given[a] for a in _PRODUCTS[name]), name, carrier, dim, after)
    if name in _OF_CLASSES:
        return 0 if dim == 0 and before > 1 and after > 0 else None
    if name in ("t", "transpose", "permute"):
        return _order(name, given, before).index(dim)
    if name == "unsqueeze":
        return dim + (given["dim"] % after <= dim)
    if name == "diagonal" and before == 2:
        return 0  # entry k is in row k and in column k
    if name == "einsum":
        return _of_einsum(given, carrier, dim)
    return None


def _of_product(
    left: fx.Node, right: fx.Node, name: str, carrier: fx.Node, dim: int, after: int
) -> int | None:
    """`[..., n, m] @ [..., m, r]`, or distances of the rows of `[n, m]` and of `[r, m]`."""
    place = dim - carrier.meta["val"].ndim  # from the end, as broadcasting aligns
    if min(left.meta["val"].ndim, right.meta["val"].ndim) < 2 or left is right:
        return None
    if place < -2:
        return after + place
    if carrier is left:
        return None if place == -1 else after - 2
    summed = -1 if name == "cdist" else -2
    return None if place == summed else after - 1


def _of_einsum(given: dict[str, Any], carrier: fx.Node, dim: int) -> int | None:
    inputs, arrow, output = given["equation"].replace(" ", "").partition("->")
    if "." in inputs or not arrow:
        return None
    label = inputs.split(",")[list(given["tensors"]).index(carrier)][dim]
    return output.index(label) if label in output else None


def _dims(dims: Any, ndim: int) -> set[int]:
    dims = [dims] if isinstance(dims, int) else dims
    return {d % ndim for d in dims or ()}


def _order(name: str, given: dict[str, Any], ndim: int) -> list[int]:
    """Which dim of the operand each dim of the output is."""
    if name == "permute":
        return [d % ndim for d in given["dims"]]
    order = list(range(ndim))
    one, other = (0, ndim - 1) if name == "t" else (given["dim0"] % ndim, given["dim1"] % ndim)
    order[one], order[other] = order[other], order[one]
    return order
