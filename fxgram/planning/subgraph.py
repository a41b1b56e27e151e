"""One contribution cut out of a lowered graph: what its ways to be contracted compute, alone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from passes import (
    WEIGHTS,
    Choice,
    Contribution,
    Spec,
    clean,
    contract,
    drop_dead_nodes,
    facts,
    merge_masks,
    runnable,
    target_name,
)


@dataclass(frozen=True)
class Subgraph:
    """A module, and the fake values of its arguments by name."""

    module: fx.GraphModule
    inputs: Mapping[str, Any]


class Cutter:
    """Cuts contributions out of a lowered graph."""

    def __init__(self, lowered: fx.GraphModule, spec: Spec):
        self._gm, self._spec = lowered, spec
        self._order = {node: at for at, node in enumerate(lowered.graph.nodes)}
        *_, output = lowered.graph.nodes
        self._results = output.args[0]
        self._weights = next(n for n in lowered.graph.nodes if n.name == WEIGHTS)
        self._late: set[fx.Node] = {self._weights}
        for node in lowered.graph.nodes:
            if any(n in self._late for n in node.all_input_nodes):
                self._late.add(node)

    def text(self, contribution: Contribution, samples: int) -> str:
        """All that any choice may run, and on which sizes; equal for layers that are alike."""
        operands, _ = self._operands(contribution)
        ordinary, _ = self._ordinary(contribution)
        return "\n".join(line for g in (operands, ordinary) for line in _lines(g, samples))

    def gradients(self, contribution: Contribution) -> Subgraph:
        """The ordinary weight gradients of its parameters, all uses of these included."""
        graph, ends = self._ordinary(contribution)
        graph.output(tuple(ends))
        merge_masks(graph)
        return self._module(graph)

    def contracted(self, contribution: Contribution, choice: Choice) -> Subgraph:
        """Its summand of the Gramian, and what is kept, weighted."""
        factors = contribution.factors
        assert factors is not None
        graph, env = self._operands(contribution)
        moved = replace(
            factors,
            operands=tuple(env[n] for n in factors.operands),
            kernels=tuple(replace(k, jacobian=env[k.jacobian]) for k in factors.kernels),
        )
        gradients = {name: env[n] for name, n in self._gradients_of(contribution).items()}
        results = {"losses": env[self._results["losses"]], "aux": (), "mutated": {},
                   "cotangents": {}, "gradients": gradients}  # fmt: skip
        graph.output(results)
        gm = fx.GraphModule(self._gm, graph)
        axis = facts(self._gm)["losses_axis"]
        facts(gm).update(contributions=(replace(contribution, factors=moved),), losses_axis=axis)
        gm = contract(gm, replace(self._spec, choices=(choice,)))
        gm = clean(gm, self._spec)
        *_, output = gm.graph.nodes
        found = output.args[0]
        summand = found["gramian"].args[0].args[0]  # of `(S + Sᵀ) / 2`, which all choices share
        kept = found["gradients"].values() if choice.keep else ()
        output.args = ((summand, *kept),)
        drop_dead_nodes(gm.graph)
        return self._module(gm.graph)

    def _operands(self, contribution: Contribution) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
        """Operands and kernels as lowering emitted them, and what the output needs besides."""
        factors = contribution.factors
        assert factors is not None
        ends = [*factors.operands, *(kernel.jacobian for kernel in factors.kernels)]
        graph, env = self._copy(ends, {n for n in self._order if n.meta.get("emitted")})
        gradients = self._gradients_of(contribution).values()
        for node in (self._weights, self._results["losses"], *gradients):
            if node not in env:
                env[node] = _placeholder(graph, node)
        return graph, env

    def _ordinary(self, contribution: Contribution) -> tuple[fx.Graph, list[fx.Node]]:
        """What depends on the weights and leads to the gradients, and these."""
        ends = list(self._gradients_of(contribution).values())
        graph, env = self._copy(ends, self._late - {self._weights})
        return graph, [env[end] for end in ends]

    def _gradients_of(self, contribution: Contribution) -> dict[str, fx.Node]:
        names = {use.parameter for use in contribution.uses}
        return {
            placeholder: node
            for placeholder, node in self._results["gradients"].items()
            if isinstance(node, fx.Node) and self._spec.inputs[placeholder].name in names
        }

    def _copy(
        self, ends: Iterable[fx.Node], inside: set[fx.Node]
    ) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
        """A graph of the nodes of `inside` that the ends depend on, what they read as inputs."""
        needed, stack = set(), list(ends)
        while stack:
            node = stack.pop()
            if node not in needed:
                needed.add(node)
                stack += node.all_input_nodes if node in inside else ()
        graph, env = fx.Graph(), {}
        nodes = sorted(needed, key=self._order.__getitem__)
        for node in nodes:
            if node not in inside:
                env[node] = _placeholder(graph, node)
        for node in nodes:
            if node in inside:
                env[node] = graph.node_copy(node, lambda n: env[n])
        return graph, env

    def _module(self, graph: fx.Graph) -> Subgraph:
        for node in list(graph.nodes):
            if node.op == "placeholder" and not node.users:
                graph.erase_node(node)
        inputs = {n.name: n.meta["val"] for n in graph.nodes if n.op == "placeholder"}
        return Subgraph(runnable(self._gm, graph, "Contribution"), inputs)


def _placeholder(graph: fx.Graph, node: fx.Node) -> fx.Node:
    found = graph.placeholder(node.name)
    found.meta["val"] = node.meta["val"]
    return found


def _lines(graph: fx.Graph, samples: int) -> Iterator[str]:
    """One line for each node, with names that say nothing of where in a model it stands."""
    names: dict[fx.Node, str] = {}
    for node in graph.nodes:
        names[node] = f"v{len(names)}"
        args = fx.node.map_arg((node.args, node.kwargs), lambda n: names[n])
        if node.op == "placeholder":
            yield f"{names[node]} {_described(node.meta['val'], samples)}"
        else:
            yield f"{names[node]} {node.op} {target_name(node)} {args}"


def _described(value: Any, samples: int) -> str:
    if not isinstance(value, torch.Tensor):
        return str(_number(value, samples))
    shape, strides = _layout(value, samples)
    return f"{value.dtype} {shape} {strides}"


def _layout(value: torch.Tensor, samples: int) -> tuple[list[int], list[int]]:
    shape, strides = value.shape, value.stride()
    return [_number(n, samples) for n in shape], [_number(n, samples) for n in strides]


def stand_in(value: Any, samples: int, below: int, generator: torch.Generator | None) -> Any:
    """A random tensor with the sizes, strides and dtype of a fake one; integers are `< below`."""
    if not isinstance(value, torch.Tensor):
        return _number(value, samples)
    shape, strides = _layout(value, samples)
    count = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides)) if 0 not in shape else 0
    options = {"dtype": value.dtype, "device": value.device}
    if value.is_floating_point() or value.is_complex():
        flat = torch.randn(count, generator=generator, **options)
    else:
        most = 2 if value.dtype == torch.bool else below
        flat = torch.randint(most, (count,), generator=generator, **options)
    return flat.as_strided(shape, strides)


def _number(value: Any, samples: int) -> Any:
    if not hasattr(value, "node"):
        return value
    expression = value.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, samples)))
