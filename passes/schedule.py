"""`schedule`: contract as soon as a cotangent exists, so that what it reads can be freed."""

import operator
from typing import Any

from torch import fx

from passes.clean import call_key
from passes.dead import drop_dead_nodes
from passes.differentiate import SEEDS
from passes.spec import Spec

_KEEPS_ALL = "native_group_norm_backward"  # without the input's gradient, PyTorch 2.13 crashes


def schedule(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Move every node that lowering and contracting added right behind what it reads.

    before   forward, cotangents, contributions
    becomes  forward, cotangent, its contribution, next cotangent, its contribution, ...
    """
    merge_masks(gm.graph)
    *_, output = gm.graph.nodes
    losses = output.args[0]["losses"]
    rank: dict[fx.Node, int] = {}
    for at, node in enumerate(gm.graph.nodes):
        # The seeds are made from the losses when a step runs.
        inputs = [rank[losses if n.name == SEEDS else n] for n in node.all_input_nodes]
        rank[node] = max(inputs, default=0) if node.meta.get("emitted") else at
    for node in reversed(gm.graph.nodes):  # what a contribution lays out first waits for it
        users = [rank[user] for user in node.users]
        if node.meta.get("emitted") and not node.meta.get("total") and users:
            rank[node] = max(rank[node], min(users))
    order = sorted(gm.graph.nodes, key=rank.__getitem__)
    last = order[0]
    for node in order[1:]:
        last.append(node)
        last = node
    gm.recompile()
    return gm


def merge_masks(graph: fx.Graph) -> None:
    """Compute all gradients of one operator's backward in one call, and none that nobody reads.

    before   dx = f(..., mask=[True, False]); dw = f(..., mask=[False, True])
    becomes  dx, dw = f(..., mask=[True, True])
    """
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if not _has_mask(node):
            continue
        key = call_key(node.target, node.args[:-1], node.kwargs)
        twin = first.setdefault(key, node) if key is not None else node
        if twin is not node:
            mask = [a or b for a, b in zip(twin.args[-1], node.args[-1])]
            twin.args = (*twin.args[:-1], mask)
            node.replace_all_uses_with(twin)
            graph.erase_node(node)
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is operator.getitem and seen.setdefault(node.args, node) is not node:
            node.replace_all_uses_with(seen[node.args])
            graph.erase_node(node)
    drop_dead_nodes(graph)
    for node in graph.nodes:
        if _has_mask(node) and node.target._opname != _KEEPS_ALL:
            read = {user.args[1] for user in node.users}
            mask = [wanted and at in read for at, wanted in enumerate(node.args[-1])]
            node.args = (*node.args[:-1], mask)


def _has_mask(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments or schema.arguments[-1].name != "output_mask":
        return False
    return len(node.args) == len(schema.arguments)
