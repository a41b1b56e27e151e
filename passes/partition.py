"""`partition`: what runs forward, and what waits for the weights of `losses.backward`."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from passes.dead import drop_dead_nodes
from passes.differentiate import SEEDS, WEIGHTS
from passes.driver import copy_graph

aten = torch.ops.aten


@dataclass(frozen=True)
class GradientPart:
    """The gradient graph of parameters that share work: `(weights, *saved) -> gradients`."""

    module: fx.GraphModule
    parameters: tuple[str, ...]  # placeholder names, in the order of the outputs
    saved: tuple[int, ...]  # which of the forward's saved values it reads


@dataclass(frozen=True)
class Partition:
    """The compiled program as two kinds of modules, all taking tensors alone."""

    forward: fx.GraphModule  # inputs -> (losses, gramian, *aux, *mutated, *saved)
    evaluate: fx.GraphModule  # inputs -> (losses, gramian, *aux, *mutated): nothing kept
    inputs: tuple[str, ...]
    aux: int  # how many values the objective returns besides the losses
    mutated: tuple[str, ...]  # placeholders whose new values the modules return
    parts: tuple[GradientPart, ...]


def partition(gm: fx.GraphModule) -> Partition:
    """Split the cleaned graph at the values that the weighted gradients read.

    Parameters whose gradients share a node are put into one part, so that each part can run, and
    free what it kept, on its own.
    """
    *_, output = gm.graph.nodes
    results = output.args[0]
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    weights = next(n for n in inputs if n.name == WEIGHTS)
    late = _late(gm.graph, weights)
    wanted = {p: g for p, g in results["gradients"].items() if isinstance(g, fx.Node)}
    groups = _share(wanted, late)
    saved = dict.fromkeys(
        n for names in groups for n in _operands(_needed([wanted[p] for p in names], late))
        if n not in late
    )  # fmt: skip
    at = {node: i for i, node in enumerate(saved)}
    parts = tuple(_gradient_part(gm, names, wanted, late, weights, at) for names in groups)
    mutated = dict(results["mutated"])
    plain = [results["losses"], results["gramian"], *results["aux"], *mutated.values()]
    names = tuple(n.name for n in inputs if n.name not in (SEEDS, WEIGHTS))
    return Partition(
        forward=_forward(gm, plain + list(saved), results["losses"]),
        evaluate=_forward(gm, plain, results["losses"]),
        inputs=names,
        aux=len(results["aux"]),
        mutated=tuple(mutated),
        parts=parts,
    )


def _late(graph: fx.Graph, weights: fx.Node) -> dict[fx.Node, None]:
    """Nodes that depend on the weights, in order."""
    late: dict[fx.Node, None] = {weights: None}
    for node in graph.nodes:
        if node.op != "output" and any(n in late for n in node.all_input_nodes):
            late[node] = None
    return late


def _needed(ends: Iterable[fx.Node], inside: dict[fx.Node, None]) -> list[fx.Node]:
    """Nodes of `inside` that the ends depend on, in order."""
    found, stack = set(), list(ends)
    while stack:
        node = stack.pop()
        if node in inside and node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return [n for n in inside if n in found]


def _operands(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    return [n for node in nodes for n in node.all_input_nodes]


def _share(wanted: dict[str, fx.Node], late: dict[fx.Node, None]) -> list[list[str]]:
    owner: dict[fx.Node, list[str]] = {}
    groups: list[list[str]] = []
    for name, end in wanted.items():
        mine = [name]
        for node in _needed([end], late):
            if node.op == "placeholder" or _is_weight_view(node, late):
                continue
            other = owner.get(node)
            if other is not None and other is not mine:
                mine.extend(n for n in other if n not in mine)
                groups = [g for g in groups if g is not other]
                for key, value in owner.items():
                    if value is other:
                        owner[key] = mine
            owner[node] = mine
        groups.append(mine)
    return groups


def _is_weight_view(node: fx.Node, late: dict[fx.Node, None]) -> bool:
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    return all(n in late and (n.op == "placeholder" or _is_weight_view(n, late)) for n in tensors)


def _gradient_part(gm, names, wanted, late, weights, at) -> GradientPart:
    graph, env = fx.Graph(), {}
    env[weights] = graph.placeholder(WEIGHTS)
    body = [n for n in _needed([wanted[p] for p in names], late) if n is not weights]
    reads = list(dict.fromkeys(n for n in _operands(body) if n not in late))
    for node in reads:
        env[node] = graph.placeholder(node.name)
    for node in body:
        env[node] = graph.node_copy(node, lambda n: env[n])
    graph.output(tuple(env[wanted[p]] for p in names))
    module = fx.GraphModule(gm, graph, class_name="GradientPart")
    return GradientPart(module, tuple(names), tuple(at[n] for n in reads))


def _forward(gm: fx.GraphModule, outputs: list[fx.Node], losses: fx.Node) -> fx.GraphModule:
    graph, mapping = copy_graph(gm.graph)
    *_, output = graph.nodes
    output.args = (tuple(mapping.get(n, n) for n in outputs),)
    seeds = next(n for n in graph.nodes if n.op == "placeholder" and n.name == SEEDS)
    with graph.inserting_after(mapping[losses]):
        contiguous = {"memory_format": torch.contiguous_format}
        ones = graph.call_function(aten.ones_like.default, (mapping[losses],), contiguous)
    seeds.replace_all_uses_with(ones)
    drop_dead_nodes(graph)
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.name in (SEEDS, WEIGHTS):
            graph.erase_node(node)
    return fx.GraphModule(gm, graph, class_name="GramianGraph")
