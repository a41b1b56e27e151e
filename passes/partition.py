"""`partition`: what runs forward, and what waits for the weights of `losses.backward`."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passes.codegen import runnable
from passes.dead import drop_dead_nodes
from passes.dependence import is_random
from passes.differentiate import SEEDS, WEIGHTS
from passes.driver import copy_graph
from passes.reach import dependents, needed
from passes.sizes import nbytes
from passes.spec import tensors

aten = torch.ops.aten
_PIECE = 2**20  # bytes of gradients that are worth a part of their own
_KEPT = 2**20  # bytes of saved values that are worth being freed early


@dataclass(frozen=True)
class GradientPart:
    """Part of the gradient graph: `(weights, *saved, *carried) -> (*gradients, *handed)`."""

    module: fx.GraphModule
    parameters: tuple[str, ...]  # placeholder names, in the order of the outputs
    saved: tuple[int, ...]  # which of the forward's saved values it reads
    carried: tuple[str, ...]  # values that earlier parts computed
    handed: tuple[str, ...]  # values for later parts

    def run(
        self, weights: torch.Tensor, saved: Sequence[Any], carried: dict[str, Any]
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of `parameters`; `carried` is emptied, and gets what later parts need."""
        values = [carried.pop(name) for name in self.carried]
        results = self.module.forward(weights, *saved, *values)
        count = len(self.parameters)
        carried.update(zip(self.handed, results[count:]))
        return results[:count]


@dataclass(frozen=True)
class Partition:
    """The compiled program as two kinds of modules, all taking tensors alone."""

    forward: fx.GraphModule  # inputs -> (losses, gramian, *aux, *mutated, *saved)
    inputs: tuple[str, ...]
    aux: int  # how many values the objective returns besides the losses
    mutated: tuple[str, ...]  # placeholders whose new values the modules return
    parts: tuple[GradientPart, ...]  # in the order in which they run

    @functools.cached_property
    def evaluate(self) -> fx.GraphModule:
        """Inputs -> (losses, gramian, *aux, *mutated): nothing kept."""
        graph, _ = copy_graph(self.forward.graph)
        *_, output = graph.nodes
        output.args = (output.args[0][: 2 + self.aux + len(self.mutated)],)
        drop_dead_nodes(graph)
        return runnable(self.forward, graph, "GramianGraph")


def partition(gm: fx.GraphModule) -> Partition:
    """Split the cleaned graph at the values that the weighted gradients read.

    What depends on the weights is cut into parts that run one after the other, so that gradients
    are accumulated, and what a part kept is freed, before the next one runs.
    """
    *_, output = gm.graph.nodes
    results = output.args[0]
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    weights = next(n for n in inputs if n.name == WEIGHTS)
    late = _with_derivatives(gm.graph, dependents(gm.graph, weights), results)
    wanted = {p: g for p, g in results["gradients"].items() if isinstance(g, fx.Node)}
    pieces = _pieces(needed(wanted.values(), late), wanted)
    saved: dict[fx.Node, int] = {}
    for nodes, names in pieces:
        for node in [*_operands(nodes), *(wanted[name] for name in names)]:
            if node not in late:
                saved.setdefault(node, len(saved))
    parts = tuple(
        _gradient_part(gm, at, pieces, wanted, weights, saved) for at in range(len(pieces))
    )
    mutated = dict(results["mutated"])
    plain = [results["losses"], results["gramian"], *results["aux"], *mutated.values()]
    names = tuple(n.name for n in inputs if n.name not in (SEEDS, WEIGHTS))
    return Partition(
        forward=_forward(gm, plain + list(saved), results["losses"]),
        inputs=names,
        aux=len(results["aux"]),
        mutated=tuple(mutated),
        parts=parts,
    )


def _with_derivatives(
    graph: fx.Graph, late: dict[fx.Node, None], results: dict[str, Any]
) -> dict[fx.Node, None]:
    """Late nodes, and what they read of values that are kept anyway.

    Of `2 * x * weights` the product `2 * x` is made again, as autograd does: `x` is kept.
    """
    plain = (results["losses"], results["aux"], results["mutated"])
    stack = [n for n in torch.utils._pytree.tree_leaves(plain) if isinstance(n, fx.Node)]
    before = set(needed(stack, graph.nodes))  # the user's own forward
    known = {n for n in _operands(late) if n in before}
    known |= {n for n in graph.nodes if n.op == "placeholder" and n.name not in (SEEDS, WEIGHTS)}
    moved = set()
    for node in graph.nodes:
        if node in before or node in late or is_random(node) or not node.all_input_nodes:
            continue
        pure = isinstance(node.target, torch._ops.OpOverload)
        if pure and all(n in known for n in node.all_input_nodes):
            moved.add(node)
            known.add(node)
    return {n: None for n in graph.nodes if n in late or n in moved}


def _operands(nodes: Iterable[fx.Node]) -> list[fx.Node]:
    return [n for node in nodes for n in node.all_input_nodes]


def _pieces(
    late: list[fx.Node], wanted: dict[str, fx.Node]
) -> list[tuple[list[fx.Node], list[str]]]:
    """Cut the late nodes wherever enough is ready to be handed over, or to be freed.

    Within a piece every gradient follows what it alone needs, so that little is alive at once.
    """
    ready = {node: at for at, node in enumerate(late)}
    order = sorted(wanted, key=lambda name: ready.get(wanted[name], -1))
    pieces: list[tuple[list[fx.Node], list[str]]] = []
    left = dict.fromkeys(late)
    nodes, names = [], []
    for name in order:
        own = needed([wanted[name]], left)
        for node in own:
            del left[node]
        nodes, names = nodes + own, [*names, name]
        done = name == order[-1]
        if done or _is_worth_a_part(nodes, [wanted[n] for n in names], ready):
            pieces.append((nodes, names))
            nodes, names = [], []
    return pieces


def _is_worth_a_part(
    nodes: list[fx.Node], gradients: list[fx.Node], late: Mapping[fx.Node, int]
) -> bool:
    """Whether gradients, or the values that the nodes read, are large for a batch of 64."""
    if sum(map(_nbytes, gradients)) >= _PIECE:
        return True
    read = {n for n in _operands(nodes) if n not in late and n.op != "placeholder"}
    return sum(map(_nbytes, read)) >= _KEPT


def _nbytes(node: fx.Node) -> int:
    return sum(nbytes(value, 64) for value in tensors(node.meta.get("val")))


def _gradient_part(gm, at, pieces, wanted, weights, saved) -> GradientPart:
    nodes, names = pieces[at]
    earlier = {n for piece, _ in pieces[:at] for n in piece}
    later = [n for piece, ends in pieces[at + 1 :]
             for n in (*_operands(piece), *(wanted[name] for name in ends))]  # fmt: skip
    mine = [n for n in nodes if n is not weights]
    reads = dict.fromkeys([*_operands(mine), *(wanted[name] for name in names)])
    kept = [n for n in reads if n in saved]
    carried = [n for n in reads if n in earlier and n is not weights]
    handed = [n for n in dict.fromkeys(later) if n in mine or n in carried]
    graph, env = fx.Graph(), {}
    env[weights] = graph.placeholder(WEIGHTS)
    for node in [*kept, *carried]:
        env[node] = graph.placeholder(node.name)
    for node in mine:
        env[node] = graph.node_copy(node, lambda n: env[n])
    graph.output((*(env[wanted[p]] for p in names), *(env[n] for n in handed)))
    module = runnable(gm, graph, "GradientPart")
    return GradientPart(
        module, tuple(names), tuple(saved[n] for n in kept),
        tuple(n.name for n in carried), tuple(n.name for n in handed),
    )  # fmt: skip


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
    return runnable(gm, graph, "GramianGraph")
