"""`clean`: merge equal computation, drop what autograd alone needed, drop what is not read."""

from typing import Any

import torch
from torch import fx

from passes.dead import drop_dead_nodes
from passes.dependence import is_random
from passes.spec import Spec
from passes.use import is_use

aten = torch.ops.aten
_MAYBE_VIEWS = (aten.reshape.default, aten.contiguous.default, aten.to.dtype)


def clean(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Merge equal nodes and equal sizes of a functional graph, random ones excepted.

    before   d = detach(x); a = native_layer_norm(x, ...); b = native_layer_norm(d, ...)
    becomes  a = native_layer_norm(x, ...)
    """
    first: dict[Any, fx.Node] = {}
    returned = _returned(gm.graph)
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or is_random(node):
            continue
        if node.target == aten.clone.default and _is_needless(node, returned):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
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


def _returned(graph: fx.Graph) -> set[fx.Node]:
    """What callers get, with the values that it may show: they may write to it."""
    *_, output = graph.nodes
    results = output.args[0]
    plain = (results["losses"], results["aux"], results["mutated"])
    stack = [n for n in torch.utils._pytree.tree_leaves(plain) if isinstance(n, fx.Node)]
    found = set(stack)
    while stack:
        node = stack.pop()
        if _may_show(node):
            stack += [n for n in node.all_input_nodes if n not in found]
            found.update(node.all_input_nodes)
    return found


def _may_show(node: fx.Node) -> bool:
    """Whether a node may return a view of what it reads: those without a schema count."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.target in _MAYBE_VIEWS:
        return True
    return any(result.alias_info is not None for result in schema.returns)


def _is_needless(clone: fx.Node, returned: set[fx.Node]) -> bool:
    """Whether a clone is a value once more: nothing writes to values that no caller gets.

    Not those of inputs, which may change between a step and its backward; nor those that lay a
    value out anew.
    """
    source = clone.args[0]
    if clone in returned or _shows_input(source):
        return False
    before, after = source.meta["val"].stride(), clone.meta["val"].stride()
    return len(before) == len(after) and all(map(_same, before, after))


def _shows_input(node: fx.Node) -> bool:
    """Whether a value is an input of the graph, or may be a view of one."""
    while node.op == "call_function" and _may_show(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node.op != "call_function"


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
