"""How a write through a view reaches its base: for each view op, base and new value -> new base."""

from collections.abc import Callable

import torch
from torch import fx

from passes.spec import PassError

aten = torch.ops.aten

Inverse = Callable[[fx.Graph, fx.Node, fx.Node, fx.Node], fx.Node]  # graph, view, base, value
_SPLITS = {"chunk", "split", "split_with_sizes", "tensor_split", "unsafe_chunk"}


def _same_elements(graph: fx.Graph, view: fx.Node, base: fx.Node, value: fx.Node) -> fx.Node:
    return graph.call_function(aten.reshape_as.default, (value, base))


def _same(graph: fx.Graph, view: fx.Node, base: fx.Node, value: fx.Node) -> fx.Node:
    return value


def _unstretched(graph: fx.Graph, view: fx.Node, base: fx.Node, value: fx.Node) -> fx.Node:
    if view.meta["val"].shape != base.meta["val"].shape:
        raise PassError("mutation", "a write through `expand` cannot be followed", (view,))
    return value


def _transposed(graph: fx.Graph, view: fx.Node, base: fx.Node, value: fx.Node) -> fx.Node:
    return graph.call_function(view.target, (value, *view.args[1:]))


def _permuted(graph: fx.Graph, view: fx.Node, base: fx.Node, value: fx.Node) -> fx.Node:
    dims = [d % len(view.args[1]) for d in view.args[1]]
    return graph.call_function(
        aten.permute.default, (value, [dims.index(i) for i in range(len(dims))])
    )


def _scattered(scatter) -> Inverse:
    def inverse(graph: fx.Graph, view: fx.Node, base: fx.Node, value: fx.Node) -> fx.Node:
        return graph.call_function(scatter, (base, value, *view.args[1:]), view.kwargs)

    return inverse


_INVERSES: dict[str, Inverse] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze",
                     "unsqueeze", "view_as", "reshape_as"), _same_elements),
    **dict.fromkeys(("alias", "detach", "contiguous", "to", "_to_copy"), _same),
    **dict.fromkeys(("transpose", "t", "swapaxes", "swapdims", "numpy_T", "mT"), _transposed),
    "permute": _permuted,
    "expand": _unstretched,
    "select": _scattered(aten.select_scatter.default),
    "slice": _scattered(aten.slice_scatter.default),
    "diagonal": _scattered(aten.diagonal_scatter.default),
    "as_strided": _scattered(aten.as_strided_scatter.default),
}  # fmt: skip


def _item_scattered(
    graph: fx.Graph, view: fx.Node, base: fx.Node, value: fx.Node, item: int
) -> fx.Node:
    """A write to `view(base)[item]`, for an operator that returns views of all of its input."""
    name = view.target._opname
    at = {a.name: i for i, a in enumerate(view.target._schema.arguments)}["dim"]
    dim = view.args[at] if at < len(view.args) else view.kwargs.get("dim", 0)
    if name == "unbind":
        return graph.call_function(aten.select_scatter.default, (base, value, dim, item))
    if name in _SPLITS:
        sizes = [part.shape[dim] for part in view.meta["val"]]
        start = sum(sizes[:item])
        args = (base, value, dim, start, start + sizes[item])
        return graph.call_function(aten.slice_scatter.default, args)
    raise PassError("mutation", f"a write through `{name}` cannot be followed", (view,))


def write_back(
    graph: fx.Graph, view: fx.Node, base: fx.Node, value: fx.Node, item: int | None = None
) -> fx.Node:
    """The new value of `base` after `value` was written to its view (to item `item` of a list).

    `x[:, 0].mul_(2)` gives `x = select_scatter(x, mul(select(x, 1, 0), 2), 1, 0)`.

    Raises: PassError "mutation" if the view op has no known inverse (`expand`, say).
    """
    if item is not None:
        return _item_scattered(graph, view, base, value, item)
    name = str(getattr(view.target, "_opname", view.target))
    if name not in _INVERSES:
        raise PassError("mutation", f"a write through `{name}` cannot be followed", (view,))
    return _INVERSES[name](graph, view, base, value)
