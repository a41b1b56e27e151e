"""`contract`: add the Gramian to the graph, one summand for each contribution."""

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import fx

from passes.annotations import SampleAxis, facts
from passes.dead import drop_dead_nodes
from passes.differentiate import WEIGHTS
from passes.driver import copy_graph
from passes.emit import emit_jacobian
from passes.factors import Choice, Contribution, Factors
from passes.kernels import weighted_gradient
from passes.operands import Emitter
from passes.products import PRODUCTS, Product
from passes.spec import Spec

aten = torch.ops.aten
_SMALL = 2**12  # columns of per-sample gradients that are not worth a product of their own
_RESULTS = ("losses", "aux", "mutated", "cotangents", "gradients")


def contract(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Contract every contribution over the parameter's dims and sum.

    before   facts["contributions"]
    becomes  output["gramian"]: `G = (S + Sᵀ) / 2`, `S = sum_u J_u J_uᵀ`, symmetric to the bit; or
             its diagonal, the squared norms of the per-loss gradients

    Weighted gradients come from the per-sample gradients that a choice keeps.
    """
    axis = facts(gm)["losses_axis"]
    gm, contributions = _copy(gm)
    contraction = _Contraction(Emitter(gm), PRODUCTS[spec.product])
    emitter, results = contraction.emitter, contraction.results
    at = {node: i for i, node in enumerate(gm.graph.nodes)}
    pairs = list(zip(contributions, spec.choices, strict=True))
    contraction.biases = Counter(
        c.factors.operands[0] for c, choice in pairs if choice.contraction == "bias"
    )
    for contribution, choice in sorted(pairs, key=lambda pair: _ready(pair[0], at)):
        contraction.add(contribution, choice)
    total = contraction.finish()
    total = _in_order_of_losses(contraction, total, axis)
    if contraction.product.dims == 2:
        mirrored = contraction.call(aten.t.default, total)
        total = contraction.call(aten.add.Tensor, total, mirrored)
        total = contraction.call(aten.mul.Tensor, total, 0.5)
    losses = results["losses"].meta["val"]
    gradients = _from_kept(emitter, results["gradients"], contraction.kept, losses, axis, spec)
    results = {**results, "gradients": gradients}
    emitter.output.args = ({**{key: results[key] for key in _RESULTS}, "gramian": total},)
    drop_dead_nodes(gm.graph)
    gm.recompile()
    return gm


class _Contraction:
    """The sum so far, and what was kept on the way."""

    def __init__(self, emitter: Emitter, product: Product):
        self.emitter, self.product = emitter, product
        self.results = dict(emitter.output.args[0])
        losses = self.results["losses"].meta["val"]
        self.losses = losses
        self.dtype = torch.promote_types(losses.dtype, torch.float32)
        self.result = losses.new_empty([losses.numel()] * product.dims, dtype=self.dtype)
        self.total: fx.Node | None = None
        self.kept: dict[str, list[fx.Node]] = {}  # per-sample gradients of each parameter
        self.small: list[fx.Node] = []  # per-sample gradients that are squared together
        self.biases: Counter[fx.Node] = Counter()  # by the cotangent of their output

    def call(self, target: Any, *args: Any) -> fx.Node:
        """Emit a node of the shape of the result."""
        return self.emitter.call(target, *args, val=self.result)

    def accumulate(self, target: Any, *args: Any) -> None:
        """Let `target(total, ...)` be the sum; `schedule` does not put it off."""
        self.total = self.call(target, self.total, *args)
        self.total.meta["total"] = True

    def add(self, contribution: Contribution, choice: Choice) -> None:
        """Add one contribution as its choice says."""
        if choice.contraction == "bias":
            return
        factors, dtype = contribution.factors, self.dtype
        if contribution.summands and choice.contraction == "pairs":
            self.add_unlike(contribution.summands, choice.parts)
        elif factors is None:
            self.add_jacobians(contribution, choice, contribution.jacobians)
        elif choice.contraction == "pairs":
            self.add_pairs(factors, choice)
        elif choice.parts > 1:
            slices = (factors.equation, dtype, choice.parts, *factors.operands)
            self.accumulate(self.product.in_slices, *slices)
        else:
            jacobian = emit_jacobian(self.emitter, factors, choice.kernel)
            self.add_jacobians(contribution, choice, (jacobian,))

    def add_jacobians(
        self, contribution: Contribution, choice: Choice, jacobians: tuple[fx.Node, ...]
    ) -> None:
        """Square per-sample gradients, small ones together; keep them if the choice says so."""
        for jacobian in jacobians:
            value = jacobian.meta["val"]
            columns = math.prod(value.shape[1:])
            if choice.keep and 0 < columns <= _SMALL and not value.is_complex():
                reshape = aten.reshape.default
                self.small.append(self.emitter.call(reshape, jacobian, [-1, columns]))
            else:
                self.accumulate(self.product.of_jacobian, jacobian, self.dtype)
        if choice.keep:
            names = [use.parameter for use in contribution.uses]
            names = names if len(jacobians) > 1 else names[:1]
            for name, jacobian in zip(names, jacobians, strict=True):
                self.kept.setdefault(name, []).append(jacobian)

    def add_pairs(self, factors: Factors, choice: Choice) -> None:
        """`(A Aᵀ) ∘ (B Bᵀ)`, and the biases that are added to the same output."""
        biases = self.biases.pop(factors.operands[0], 0)
        if factors.equation == "ko,ki->oi" and choice.parts == 1:
            self.add_outer_products(factors.operands, biases)
        else:
            pairs = (factors.equation, factors.one_hot, self.dtype, choice.parts, biases)
            self.accumulate(self.product.of_pairs, *pairs, *factors.operands)

    def add_outer_products(self, operands: tuple[fx.Node, ...], biases: int) -> None:
        """The same as operators, so that equal halves of several uses are merged."""
        b, a = (self._squared(node) for node in operands)
        if biases:
            a = self.call(aten.add.Scalar, a, biases)
        if self.total is None:
            self.total = self.call(aten.mul.Tensor, a, b)
            self.total.meta["total"] = True
        else:
            self.accumulate(aten.addcmul.default, a, b)

    def _squared(self, node: fx.Node) -> fx.Node:
        """`A Aᵀ` of rows `A [k, i]`, or its diagonal."""
        if node.meta["val"].dtype != self.dtype:
            node = self.emitter.call(aten.to.dtype, node, self.dtype)
        if self.product.dims == 2:
            return self.call(aten.mm.default, node, self.emitter.call(aten.t.default, node))
        square = self.emitter.call(aten.mul.Tensor, node, node)
        return self.call(aten.sum.dim_IntList, square, [1])

    def add_unlike(self, summands: tuple[Factors, ...], parts: int) -> None:
        """Pairs of every use with itself, and of every two uses of one parameter."""
        for u in summands:
            pairs = (u.equation, u.one_hot, self.dtype, parts, 0, *u.operands)
            self.accumulate(self.product.of_pairs, *pairs)
        for u, v in combinations(summands, 2):
            both = ((u.equation, v.equation), (u.one_hot, v.one_hot), *u.operands, *v.operands)
            self.accumulate(self.product.of_unlike, self.dtype, *both)

    def finish(self) -> fx.Node:
        """The sum of all that was added."""
        if self.small:
            rows = self.small[0]
            if len(self.small) > 1:
                rows = self.emitter.call(aten.cat.default, self.small, 1)
            self.accumulate(self.product.of_jacobian, rows, self.dtype)
        assert self.total is not None
        assert not self.biases
        return self.total


def _ready(contribution: Contribution, at: dict[fx.Node, int]) -> int:
    """When all that a contribution reads exists: the last layer's comes first."""
    every = (contribution.factors, *contribution.summands)
    stack = [*contribution.jacobians, *(n for f in every if f is not None for n in f.operands)]
    ready, seen = 0, set()
    while stack:
        node = stack.pop()
        if node.meta.get("emitted"):
            stack += [n for n in node.all_input_nodes if n not in seen]
            seen.update(node.all_input_nodes)
        else:
            ready = max(ready, at[node])
    return ready


def _in_order_of_losses(contraction: _Contraction, total: fx.Node, axis: SampleAxis) -> fx.Node:
    """Rows come sample by sample; let them follow `losses.flatten()`: `[T, K]` transposes both."""
    if not axis.dim:
        return total
    losses, dims = contraction.losses, contraction.product.dims
    others = [n for d, n in enumerate(losses.shape) if d != axis.dim]
    shape, count = [-1, *others], losses.ndim
    order = [*range(1, axis.dim + 1), 0, *range(axis.dim + 1, count)]
    for dim in reversed(range(dims)):
        total = contraction.call(aten.unflatten.int, total, dim, shape)
    both = [half * count + d for half in range(dims) for d in order]
    total = contraction.call(aten.permute.default, total, both)
    for dim in range(dims):
        total = contraction.call(aten.flatten.using_ints, total, dim, dim + count - 1)
    return total


def _copy(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[Contribution]]:
    """A copy to work on: one lowered graph serves several plans."""
    graph, mapping = copy_graph(gm.graph)

    def moved(factors: Factors) -> Factors:
        kernels = tuple(replace(k, jacobian=mapping[k.jacobian]) for k in factors.kernels)
        operands = tuple(mapping[n] for n in factors.operands)
        return replace(factors, operands=operands, kernels=kernels)

    contributions = [
        replace(
            c,
            factors=c.factors and moved(c.factors),
            summands=tuple(map(moved, c.summands)),
            jacobians=tuple(mapping[n] for n in c.jacobians),
        )
        for c in facts(gm)["contributions"]
    ]
    return fx.GraphModule(gm, graph), contributions


def _from_kept(
    emitter: Emitter,
    gradients: dict[str, Any],
    kept: dict[str, list[fx.Node]],
    losses: torch.Tensor,
    axis: SampleAxis,
    spec: Spec,
) -> dict[str, Any]:
    """Weighted gradients of the parameters whose per-sample gradients were kept, from those."""
    if not kept:
        return gradients
    rows = next(n for n in emitter.graph.nodes if n.op == "placeholder" and n.name == WEIGHTS)
    if axis.dim:
        rows = emitter.call(torch.movedim, rows, axis.dim, 0)
    if losses.ndim != 1:
        rows = emitter.call(aten.reshape.default, rows, [-1])
    found = dict(gradients)
    for placeholder in gradients:
        jacobians = kept.get(spec.inputs[placeholder].name)
        if jacobians:
            value = gradients[placeholder].meta["val"]
            arguments = (rows, list(value.shape), value.dtype, *jacobians)
            found[placeholder] = emitter.call(weighted_gradient, *arguments, val=value)
    return found
