"""`recompute`: free the cotangents, and run a second backward for the weighted gradient."""

import torch
from torch import fx

from passes.dead import drop_dead_nodes
from passes.differentiate import SEEDS, WEIGHTS
from passes.kernels import weighted_gradient
from passes.reach import dependents, needed
from passes.spec import Spec

aten = torch.ops.aten


def recompute(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Seed a copy of the losses' backward with the weights, where memory is scarce.

    before   c = backward(seeds); dw = mm((c * weights).t(), x)
    becomes  d = backward(weights); dw = mm(d.t(), x)

    A backward is linear in its seed, and samples are independent: `weights[k]` times the cotangent
    of sample k is the cotangent from `weights`. Activations are kept, as autograd keeps them.
    """
    if not spec.recompute:
        return gm
    *_, output = gm.graph.nodes
    results = output.args[0]
    seeds, weights = (
        next(n for n in gm.graph.nodes if n.op == "placeholder" and n.name == name)
        for name in (SEEDS, WEIGHTS)
    )
    seeded, weighted = dependents(gm.graph, seeds), dependents(gm.graph, weights)
    scale = {weights}  # the weights themselves, cast and viewed
    for node in gm.graph.nodes:
        if node in weighted and all(a in scale for a in node.all_input_nodes if not _is_size(a)):
            scale.add(node)
    wanted = [
        g
        for g in results["gradients"].values()
        if isinstance(g, fx.Node) and g.target is not weighted_gradient  # of what is kept anyway
    ]
    copies: dict[fx.Node, fx.Node] = {seeds: weights}
    with gm.graph.inserting_before(output):
        for node in needed(wanted, gm.graph.nodes):
            if node.op == "placeholder":
                continue
            scaled = [a for a in node.all_input_nodes if a in scale]
            if node.target == aten.mul.Tensor and scaled and node.args[0] in seeded:
                copies[node] = copies[node.args[0]]
            elif (node in seeded or node in weighted) and node not in scale:
                copies[node] = gm.graph.node_copy(node, lambda n: copies.get(n, n))
    gradients = {
        name: copies.get(g, g) if isinstance(g, fx.Node) else g
        for name, g in results["gradients"].items()
    }
    output.args = ({**results, "gradients": gradients},)
    drop_dead_nodes(gm.graph)
    gm.recompile()
    return gm


def _is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | int)
