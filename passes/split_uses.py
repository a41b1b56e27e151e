"""`split_uses`: every use of a parameter gets a node, and a parameter-only chain, of its own."""

import torch
from torch import fx

from passes.annotations import note
from passes.dead import drop_dead_nodes
from passes.dependence import is_random, mark_dependence
from passes.spec import PassError, Spec
from passes.use import use

_DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}


def split_uses(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Clone the parameter-only values in front of every edge into an operator that sees data.

    before   wt = t(w);                a = mm(x, wt);   b = mm(y, wt)
    becomes  u0 = use(w); t0 = t(u0);  a = mm(x, t0);   u1 = use(w); t1 = t(u1);  b = mm(y, t1)
    """
    mark_dependence(gm, spec)
    if _separate_noise(gm):
        mark_dependence(gm, spec)
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op == "output" or (note(node).data and note(node).grad):
            _split_edges(graph, node)
    drop_dead_nodes(graph)
    gm.recompile()
    return gm


def _split_edges(graph: fx.Graph, node: fx.Node) -> None:
    """Give every parameter-only operand of `node` that carries gradient a clone of its own."""

    def split(operand: fx.Node) -> fx.Node:
        found = note(operand)
        return operand if found.data or not found.grad else _clone(graph, operand, {})

    with graph.inserting_before(node):
        node.args = fx.node.map_arg(node.args, split)
        node.kwargs = fx.node.map_arg(node.kwargs, split)


def _clone(graph: fx.Graph, node: fx.Node, clones: dict[fx.Node, fx.Node]) -> fx.Node:
    """Clone what carries gradient down to the parameters; one `use` for each parameter."""
    if not note(node).grad:
        return node
    if node not in clones:
        if node.op == "placeholder":
            copy = graph.call_function(use, (node,))
            copy.meta = dict(node.meta)
        else:
            # Operands first: the graph stays in topological order.
            for operand in node.all_input_nodes:
                _clone(graph, operand, clones)
            copy = graph.node_copy(node, lambda n: clones.get(n, n))
        clones[node] = copy
    return clones[node]


def _separate_noise(gm: fx.GraphModule) -> bool:
    """Turn dropout of a parameter into a product with a mask drawn in the same way.

    before   d = dropout(w, p, True)
    becomes  o = ones_like(w); m = dropout(o, p, True); d = mul(w, m)     equal draws, equal values
    """
    changed = False
    for node in list(gm.graph.nodes):
        if not (is_random(node) and note(node).grad):
            continue
        source = node.all_input_nodes[0]
        if any(note(n).data for n in node.all_input_nodes):
            continue
        name = getattr(node.target, "_opname", "")
        if name not in _DROPOUTS or name.endswith("alpha_dropout"):
            raise PassError("random", "a random operator is applied to a parameter", (node,))
        with gm.graph.inserting_before(node):
            ones = gm.graph.call_function(torch.ops.aten.ones_like.default, (source,))
        with gm.graph.inserting_after(node):
            product = gm.graph.call_function(torch.ops.aten.mul.Tensor, (source, node))
        product.meta = dict(node.meta)
        for user in [u for u in node.users if u is not product]:
            user.replace_input_with(node, product)
        node.replace_input_with(source, ones)
        changed = True
    return changed
