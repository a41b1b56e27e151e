"""`clean`: merge equal computation, drop what autograd alone needed, drop what is not read."""

from typing import Any

import torch
from torch import fx

from passes.dead import drop_dead_nodes
from passes.dependence import is_random
from passes.spec import Spec
from passes.use import is_use

aten = torch.ops.aten


def clean(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Merge equal nodes and equal sizes of a functional graph, random ones excepted.

    before   d = detach(x); a = native_layer_norm(x, ...); b = native_layer_norm(d, ...)
    becomes  a = native_layer_norm(x, ...)
    """
    first: dict[Any, fx.Node] = {}
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or is_random(node):
            continue
        if is_use(node) or node.target in (aten.alias.default, aten.detach.default):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
            continue
        if node.target == aten.reshape.default and node.args[0].target == aten.reshape.default:
            node.args = (node.args[0].args[0], node.args[1])
        if node.target == aten.reshape.default and _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
            continue
        if node.target == aten.t.default and node.args[0].target == aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
            gm.graph.erase_node(node)
            continue
        value = node.meta.get("val")
        is_size = isinstance(value, torch.SymInt)
        key = value.node.expr if is_size else call_key(node.target, node.args, node.kwargs)
        twin = first.setdefault(key, node) if key is not None else node
        if twin is not node:
            node.replace_all_uses_with(twin)
            gm.graph.erase_node(node)
    drop_dead_nodes(gm.graph)
    gm.recompile()
    return gm


def _changes_nothing(node: fx.Node) -> bool:
    """Whether a reshape gives what it got."""
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape
    return len(before) == len(after) and all(map(_same, before, after))


def _same(a: Any, b: Any) -> bool:
    a, b = (n.node.expr if isinstance(n, torch.SymInt) else n for n in (a, b))
    return a == b


def call_key(target: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Equal keys, equal values of a pure function; None if the arguments can't be compared.

    `1`, `1.0` and `True` are equal in Python but not as arguments, so types count.
    """
    flat, tree = torch.utils._pytree.tree_flatten((args, kwargs))
    key = (target, tuple((type(a), a) for a in flat), tree)
    try:
        hash(key)
    except TypeError:
        return None
    return key
