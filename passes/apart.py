"""Which operators can carry gradient from one sample to another, whatever the values are."""

from typing import Any

import torch
from torch import fx

from passes.annotations import SampleAxis, note
from passes.folds import PARTS
from passes.schema import arguments

# Their dim arguments choose, split or arrange; sizes tell whether samples are still apart.
_BY_SIZES = {
    "transpose", "permute", "movedim", "unsqueeze", "squeeze", "select", "slice", "narrow", "split",
    "split_with_sizes", "chunk", "unbind", "tensor_split", "cat", "stack", "flatten", "unflatten",
    "sum", "mean", "amax", "amin", "max", "min", "prod", "var", "std", "norm", "logsumexp", "any",
    "all", "argmax", "argmin", "median", "nansum", "linalg_vector_norm", "var_mean", "std_mean",
    "repeat_interleave", "unfold", "swapaxes", "swapdims", "select_scatter", "slice_scatter",
    "diagonal", "aminmax", "select_backward", "slice_backward", "diagonal_backward",
}  # fmt: skip
_RESHAPES = {"view", "reshape", "_unsafe_view", "view_as", "reshape_as"}
# Operands and which of their dims (from the end) are summed over.
_SUMMED = {
    "mm": {"self": -1, "mat2": -2}, "bmm": {"self": -1, "mat2": -2},
    "addmm": {"mat1": -1, "mat2": -2}, "baddbmm": {"batch1": -1, "batch2": -2},
    "matmul": {"self": -1, "other": -2}, "linear": {"input": -1}, "mv": {"self": -1, "vec": -1},
    "dot": {"self": -1, "tensor": -1}, "addmv": {"mat": -1, "vec": -1},
}  # fmt: skip


def moves_samples(node: fx.Node) -> bool:
    """Whether the operator reads along the sample axis of an operand that carries gradient.

    `roll(x, 1, 0)`, `x[order]`, `softmax(x, 0)`, `a @ x` with samples on the summed dim: gradients
    that happen to be zero on one batch, or an order that happens to be the identity, prove nothing.
    """
    name = getattr(node.target, "_opname", "")
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return False
    given = arguments(node)
    for operand in node.all_input_nodes:
        found = note(operand)
        if not (found.grad and found.batched) or len(found.axes) != 1 or found.axes[0] is None:
            continue
        axis, value = found.axes[0], operand.meta["val"]
        if axis.dim is None or not isinstance(value, torch.Tensor):
            continue
        ndim = value.ndim
        if name in _RESHAPES or name in ("flatten", "unflatten"):
            moved = note(node).axes == (None,)
        elif name in PARTS:
            moved = None in note(node).axes
        elif name in ("index", "_unsafe_index", "index_put"):
            moved = operand is given["self"] and _is_reordered(given["indices"], axis)
        elif name.startswith("conv"):
            moved = axis.dim != 0
        elif name == "scaled_dot_product_attention":
            moved = axis.dim >= ndim - 2
        elif name == "einsum":
            moved = _is_summed_by_einsum(given, operand, axis)
        elif name in _SUMMED:
            moved = _is_summed(_SUMMED[name], given, operand, axis, ndim)
        else:
            moved = name not in _BY_SIZES and axis.dim in _dims(given, ndim)
        if moved:
            return True
    return False


def _dims(given: dict[str, Any], ndim: int) -> set[int]:
    dims = given.get("dims", given.get("dim"))
    dims = [dims] if isinstance(dims, int) else dims
    return {d % ndim for d in dims or () if isinstance(d, int)}


def _is_reordered(indices: list, axis: SampleAxis) -> bool:
    """Whether `x[..., index, ...]` picks samples by anything but `arange(K)`."""
    if axis.dim >= len(indices) or indices[axis.dim] is None:
        return False
    index = indices[axis.dim]
    if index.meta["val"].dtype == torch.bool:
        return False
    while getattr(index.target, "_opname", "") in ("view", "reshape", "unsqueeze", "expand", "to"):
        index = index.args[0]
    given = arguments(index)
    whole = given.get("start", 0) == 0 and given.get("step", 1) == 1
    return not (getattr(index.target, "_opname", "") == "arange" and whole)


def _is_summed(
    summed: dict[str, int], given: dict[str, Any], operand: fx.Node, axis: SampleAxis, ndim: int
) -> bool:
    return any(
        given.get(name) is operand and axis.dim == ndim + (dim if ndim > 1 else -1)
        for name, dim in summed.items()
    )


def _is_summed_by_einsum(given: dict[str, Any], operand: fx.Node, axis: SampleAxis) -> bool:
    inputs, arrow, output = given["equation"].replace(" ", "").partition("->")
    if not arrow:
        output = "".join(c for c in inputs if c.isalpha() and inputs.count(c) == 1)
    for tensor, labels in zip(given["tensors"], inputs.split(",")):
        if tensor is operand:
            before, dots, behind = labels.partition("...")
            middle = "." * (operand.meta["val"].ndim - len(before + behind)) if dots else ""
            label = (before + middle + behind)[axis.dim]
            if label != "." and label not in output:
                return True
    return False
