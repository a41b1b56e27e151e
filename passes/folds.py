"""Blocks of samples side by side on one dim: where they are put together and taken apart."""

import operator
from typing import Any

import sympy
import torch
from torch import fx

from passes.annotations import SampleAxis, note
from passes.schema import arguments
from passes.spec import tensors

_SPLITS = {"split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split",
           "unsafe_split_with_sizes", "unsafe_chunk"}  # fmt: skip
_SLICES = {"slice", "narrow"}
_CATS = {"cat", "concat", "concatenate", "vstack"}
_FILLS = {"zeros", "ones", "full", "new_zeros", "new_ones", "new_full",
          "expand"}  # fmt: skip
PARTS = _SPLITS | _SLICES  # operators that take a part of a dim
UNKNOWN = object()


def folded(node: fx.Node, at: int, dim: int, samples: sympy.Expr) -> Any:
    """The sample axis on dim `dim` of the output `at` of a node; UNKNOWN if sizes have to tell.

    `cat([a[K], b[K]])` has outer 2; `z[K:]` of it is one block, with outer 1 again. `z[::2]` is one
    of two positions where inner is 2. Other parts have samples in another order: None.
    """
    if node.target is operator.getitem:
        parent = node.args[0]
        return note(parent).axes[node.args[1]] if _name(parent) in _SPLITS else UNKNOWN
    if _name(node) in _CATS:
        return _side_by_side(node, dim)
    if _name(node) in PARTS:
        return _part(node, at, dim, samples)
    return UNKNOWN


def folds_beside(node: fx.Node, fold: int) -> set[tuple[int, int]]:
    """Orders (outer, inner) of other values as long as this one, if it is the same all along.

    The first state of a recurrent layer is `zeros(c * K, d)`, the gradient of a sum is `ones`
    expanded: any order of the samples will do.
    """
    if _name(node) not in _FILLS or any(
        note(n).batched or note(n).grad for n in node.all_input_nodes
    ):
        return set()
    axes = (axis for other in node.graph.nodes for axis in note(other).axes)
    found = {(a.outer, a.inner) for a in axes if a is not None and a.dim is not None}
    return {(outer, inner) for outer, inner in found if outer * inner == fold}


def size_of(size: Any) -> sympy.Expr:
    """A size, a number or a node that computes one, as an expression of symbols."""
    size = size.meta["val"] if isinstance(size, fx.Node) else size
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _name(node: fx.Node) -> str:
    return getattr(node.target, "_opname", "")


def _side_by_side(node: fx.Node, dim: int) -> Any:
    given = arguments(node)
    found = [axis for n in given["tensors"] for axis in note(n).axes]
    along = given.get("dim", 0) % node.meta["val"].ndim
    if along != dim or any(axis is None or axis.dim != dim for axis in found):
        return UNKNOWN
    inner, outer = {axis.inner for axis in found}, sum(axis.outer for axis in found)
    return SampleAxis(dim, outer, inner.pop()) if len(inner) == 1 else None


def _part(node: fx.Node, at: int, dim: int, samples: sympy.Expr) -> Any:
    given = arguments(node)
    source = given.get("self", given.get("input"))
    (axis, *_), size = note(source).axes, source.meta["val"].shape[dim]
    along = given["dim"] % source.meta["val"].ndim == dim
    if axis is None or axis.dim != dim or not along or axis.outer * axis.inner == 1:
        return UNKNOWN
    values = tensors(node.meta["val"])
    begin = sum((size_of(v.shape[dim]) for v in values[:at]), sympy.S.Zero)
    if _name(node) in _SLICES:
        begin = size_of(given["start"] or 0)
        begin = size_of(size) + begin if begin.is_negative else begin
    count, step = size_of(values[at].shape[dim]), given.get("step", 1)
    if step != 1:
        every = isinstance(step, int) and axis.inner % step == 0 and begin in range(step)
        whole = every and step * count == size_of(size)
        return SampleAxis(dim, axis.outer, axis.inner // step) if whole else None
    blocks = [sympy.Mul(n, sympy.Pow(samples * axis.inner, -1)) for n in (begin, count)]
    return (
        SampleAxis(dim, int(blocks[1]), axis.inner) if all(n.is_Integer for n in blocks) else None
    )
