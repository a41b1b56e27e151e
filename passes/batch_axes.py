"""`batch_axes`: for every value, where its samples sit; refuse what couples samples."""

import sympy
import torch
from torch import fx

from passes.annotations import SampleAxis, annotate, facts, note
from passes.apart import moves_samples
from passes.crossed import batch_dims, crossed, is_crossed
from passes.dependence import is_random
from passes.folds import UNKNOWN, folded, folds_beside, size_of
from passes.sites import collect_groups
from passes.spec import PassError, Spec, tensors
from passes.targets import overload

_RESHAPES = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze",
             "view_as", "reshape_as"}  # fmt: skip


def batch_axes(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Follow the sample axis through the graph and group the uses by the operators they end in.

    `x[K, 20, d] -> view(K * 20, d)` puts the samples on dim 0 with 20 positions inside each.

    Raises: PassError "coupled" if a value that carries gradient mixes samples,
        "losses" if the output is not one loss per sample.
    """
    for node in gm.graph.nodes:
        if node.op != "output":
            _follow(node, spec)
    coupled = [n for n in _reaching_losses(gm) if not spec.loss_by_loss and _couples(n, spec)]
    if not any(is_crossed(n, spec.samples) for n in coupled):
        _check_losses(gm, spec)  # whose axis is known, if it is at all
    if coupled:
        raise PassError("coupled", "samples are coupled", tuple(coupled))
    if not spec.loss_by_loss and spec.samples is not None:
        facts(gm)["unproven"] = tuple(n for n in _reaching_losses(gm) if moves_samples(n))
    groups = collect_groups(gm)
    if not groups:
        raise PassError("no parameter", "no trainable parameter reaches the losses")
    random = {s.node: None for group in groups for s in group.sites if is_random(s.node)}
    if random:
        raise PassError("random", "a random operator is applied to a parameter", tuple(random))
    facts(gm)["groups"] = groups
    return gm


def _follow(node: fx.Node, spec: Spec) -> None:
    values = tensors(node.meta.get("val"))
    if spec.samples is None:
        whole = note(node).data or any(user.op == "output" for user in node.users)
        axes = (SampleAxis(None),) * len(values) if whole else (None,) * len(values)
        annotate(node, batched=whole and bool(values), axes=axes)
        return
    axes = tuple(_axis(node, at, value, spec.samples) for at, value in enumerate(values))
    batched = any(batch_dims(value, spec.samples) for value in values)
    annotate(node, batched=batched, axes=axes)


def _axis(node: fx.Node, at: int, value: torch.Tensor, samples: sympy.Expr) -> SampleAxis | None:
    """The sample axis of a value; None if there is none or if it cannot be told."""
    dims = batch_dims(value, samples)
    if len(dims) > 1 or is_crossed(node, samples):
        return crossed(node, value)
    if not dims:
        return None
    dim = dims[0]
    fold = sympy.Mul(size_of(value.shape[dim]), sympy.Pow(samples, -1))
    if not fold.is_Integer:
        return None
    name = getattr(node.target, "_opname", None)
    if name in _RESHAPES:
        return _reshaped(node.all_input_nodes[0], value, dim, samples)
    found = folded(node, at, dim, samples)
    if found is not UNKNOWN:
        return found
    if fold == 1:
        return SampleAxis(dim)
    if node.target == torch.ops.aten.repeat.default:
        source = _only_axis(node.all_input_nodes[0])
        return source and SampleAxis(dim, int(fold) // source.inner, source.inner)
    if overload(node) == torch.ops.aten.repeat_interleave.self_int:
        source = _only_axis(node.all_input_nodes[0])
        return source and SampleAxis(dim, source.outer, int(fold) // source.outer)
    folds = {
        (axis.outer, axis.inner)
        for operand in node.all_input_nodes
        for axis, other in zip(note(operand).axes, tensors(operand.meta.get("val")))
        if axis is not None and size_of(other.shape[axis.dim]) == size_of(value.shape[dim])
    } or folds_beside(node, int(fold))
    return SampleAxis(dim, *folds.pop()) if len(folds) == 1 else None


def _only_axis(node: fx.Node) -> SampleAxis | None:
    axes = note(node).axes
    return axes[0] if len(axes) == 1 else None


def _reshaped(
    source: fx.Node, value: torch.Tensor, dim: int, samples: sympy.Expr
) -> SampleAxis | None:
    """A reshape keeps the order of elements: find the samples by their stride in that order."""
    axis = _only_axis(source)
    if axis is None or axis.dim is None:
        return None
    after = sympy.prod(map(size_of, source.meta["val"].shape[axis.dim + 1 :]), start=sympy.S.One)
    stride = axis.inner * after  # elements from one sample to the next
    behind = sympy.prod(map(size_of, value.shape[dim + 1 :]), start=sympy.S.One)
    if stride == 0 or behind == 0:
        return SampleAxis(dim) if size_of(value.shape[dim]) == samples else None
    inner = sympy.Mul(stride, sympy.Pow(behind, -1))
    outer = sympy.Mul(size_of(value.shape[dim]), sympy.Pow(samples * inner, -1))
    if inner.is_Integer and outer.is_Integer and inner >= 1 and outer >= 1:
        return SampleAxis(dim, int(outer), int(inner))
    return None


def _reaching_losses(gm: fx.GraphModule) -> list[fx.Node]:
    """The values that carry gradient from a parameter to the losses."""
    *_, output = gm.graph.nodes
    live, stack = set(), [output.args[0][0][0]]
    while stack:
        node = stack.pop()
        if isinstance(node, fx.Node) and node not in live and note(node).grad:
            live.add(node)
            stack += node.all_input_nodes
    return [n for n in gm.graph.nodes if n in live]


def _couples(node: fx.Node, spec: Spec) -> bool:
    """Whether the operator mixes samples, as far as sizes and its name can tell."""
    if spec.samples is None or not any(
        note(n).batched and note(n).grad for n in node.all_input_nodes
    ):
        return False
    name = getattr(node.target, "_opname", "")
    if name in ("batch_norm", "_native_batch_norm_legit_functional") and node.args[5]:
        return True
    for value, axis in zip(tensors(node.meta.get("val")), note(node).axes):
        if value.is_floating_point() or value.is_complex():
            dims = batch_dims(value, spec.samples)
            unclear = axis is None and (len(dims) > 1 or is_crossed(node, spec.samples))
            if not dims or unclear:
                return True
    return False


def _check_losses(gm: fx.GraphModule, spec: Spec) -> None:
    *_, output = gm.graph.nodes
    losses = output.args[0][0][0]
    value = losses.meta["val"] if isinstance(losses, fx.Node) else None
    if value is None or not isinstance(value, torch.Tensor):
        raise PassError("losses", f"the objective returned {losses!r}", (output,))
    shape = tuple(value.shape)
    if not value.is_floating_point():
        raise PassError("losses", f"the losses are {value.dtype}, not floating point", (losses,))
    axis = _only_axis(losses)
    if spec.count is not None and spec.count not in shape:
        axis = None  # captured for so many samples, and no axis of that size holds them
    if axis is None or axis.outer * axis.inner > 1:
        raise PassError("losses", f"the losses have shape {list(shape)}", (losses,))
    if not note(losses).grad:
        raise PassError("no parameter", "no trainable parameter reaches the losses")
    facts(gm)["losses_axis"] = axis
