"""What each value depends on: the batch or chance (data), or parameters and constants alone."""

import torch
from torch import fx

from passes.annotations import annotate, note
from passes.propagate import propagate
from passes.spec import Spec, tensors
from passes.targets import overload

_RANDOM_COMPOSITES = {
    "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "rrelu", "rand",
    "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "normal",
    "scaled_dot_product_attention",
}  # fmt: skip


def is_random(node: fx.Node) -> bool:
    """Whether the operator draws random numbers.

    Composite operators don't carry the tag of the random operator inside of them.
    """
    called = overload(node)
    if called is None:
        return getattr(node.target, "draws", False)
    tagged = torch.Tag.nondeterministic_seeded in called.tags
    return (tagged or called._opname in _RANDOM_COMPOSITES) and not _is_switched_off(node)


def _is_switched_off(node: fx.Node) -> bool:
    """`dropout(x, 0.5, train=False)`, `lstm(..., dropout=0.0)` draw nothing."""
    for at, argument in enumerate(node.target._schema.arguments):
        value = (
            node.args[at]
            if at < len(node.args)
            else node.kwargs.get(argument.name, argument.default_value)
        )
        if argument.name in ("train", "training") and value is False:
            return True
        if argument.name in ("dropout", "dropout_p") and value == 0:
            return True
    return False


def mark_dependence(gm: fx.GraphModule, spec: Spec) -> None:
    """Note for every node whether it is data and whether it carries gradient to a parameter."""
    carrying = propagate(gm, spec)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            data = spec.inputs[node.name].kind == "batch"
        else:
            data = inherited(node)["data"]
        annotate(node, data=data, grad=node in carrying)


def inherited(node: fx.Node) -> dict[str, bool]:
    """What a new node takes over from its operands; only `detach` ends a gradient."""
    floating = any(t.is_floating_point() or t.is_complex() for t in tensors(node.meta.get("val")))
    carries = floating and node.target != torch.ops.aten.detach.default
    return {
        # Sizes are not data: a SymInt read off a data tensor is no tensor.
        "data": is_random(node) or any(note(n).data for n in _read_operands(node)),
        "grad": carries and any(note(n).grad for n in node.all_input_nodes),
    }


def _read_operands(node: fx.Node) -> list[fx.Node]:
    """Operands whose values count: `zeros_like(x)`, `w.expand_as(x)` read the sizes of x alone."""
    name = getattr(node.target, "_opname", "")
    operands = [n for n in node.all_input_nodes if not _is_number(n)]
    if name.startswith("new_") or name.endswith("_like"):
        return []
    if name in ("expand_as", "view_as", "reshape_as", "type_as"):
        return operands[:1]
    return operands


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | int | float | bool)
