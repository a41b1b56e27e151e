"""Drop nodes that nothing reads, random ones excepted."""

from torch import fx

from passes.dependence import is_random


def drop_dead_nodes(graph: fx.Graph) -> None:
    """Remove unread nodes; random operators stay, or later draws would shift."""
    graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or is_random(n))
