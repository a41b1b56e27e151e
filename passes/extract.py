"""Cut the nodes of a use group out of the captured graph, as a module of their own."""

import operator

import torch
from torch import fx

from passes.sites import UseGroup


def extract(group: UseGroup, ends: list, with_sites: bool) -> tuple[fx.GraphModule, list[fx.Node]]:
    """A module of the group's own nodes: `(uses, other operands) -> values at the ends`."""
    graph, env = fx.Graph(), {}
    for use in group.uses:
        env[use] = graph.placeholder(use.name)
    inside = [*group.region, *(dict.fromkeys(s.node for s in group.sites) if with_sites else ())]
    inside.sort(key=list(group.uses[0].graph.nodes).index)
    operands = list(group.uses)
    for node in inside:
        for operand in node.all_input_nodes:
            if operand not in env and operand not in inside:
                env[operand] = graph.placeholder(operand.name)
                operands.append(operand)
    for node in inside:
        env[node] = graph.node_copy(node, lambda n: env[n])
    results = []
    for end in ends:
        node, at = end if isinstance(end, tuple) else (end, None)
        results.append(
            env[node] if at is None else graph.call_function(operator.getitem, (env[node], at))
        )
    graph.output(tuple(results))
    return fx.GraphModule(torch.nn.Module(), graph), operands
