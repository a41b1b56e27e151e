"""What depends on a node, and what nodes need."""

from collections.abc import Iterable

from torch import fx


def dependents(graph: fx.Graph, source: fx.Node) -> dict[fx.Node, None]:
    """A node and all that depends on it, in order, the output left out."""
    found: dict[fx.Node, None] = {source: None}
    for node in graph.nodes:
        if node.op != "output" and any(n in found for n in node.all_input_nodes):
            found[node] = None
    return found


def needed(ends: Iterable[fx.Node], inside: Iterable[fx.Node]) -> list[fx.Node]:
    """Nodes of `inside` that the ends depend on, the ends among them, in the order of `inside`."""
    inside = dict.fromkeys(inside)
    found, stack = set(), list(ends)
    while stack:
        node = stack.pop()
        if node in inside and node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return [n for n in inside if n in found]
