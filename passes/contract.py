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
from passes.kernels import (
    cross_gramian,
    gramian_in_slices,
    gramian_of_jacobian,
    gramian_of_pairs,
    weighted_gradient,
)
from passes.operands import Emitter
from passes.spec import Spec

aten = torch.ops.aten
_SMALL = 2**12  # columns of per-sample gradients that are not worth a product of their own
_RESULTS = ("losses", "aux", "mutated", "cotangents", "gradients")


def contract(gm: fx.GraphModule, spec: Spec) -> fx.GraphModule:
    """Contract every contribution over the parameter's dims and sum.

    before   facts["contributions"]
    becomes  output["gramian"]: `G = (S + Sᵀ) / 2`, `S = sum_u J_u J_uᵀ`, symmetric to the bit
    """
    axis = facts(gm)["losses_axis"]
    gm, contributions = _copy(gm)
    emitter = Emitter(gm)
    results = dict(emitter.output.args[0])
    losses = results["losses"].meta["val"]
    dtype = torch.promote_types(losses.dtype, torch.float32)
    square = losses.new_empty(losses.numel(), losses.numel(), dtype=dtype)
    total = None
    kept: dict[str, list[fx.Node]] = {}
    at = {node: i for i, node in enumerate(gm.graph.nodes)}
    small: list[fx.Node] = []  # per-sample gradients that are squared together
    biases = Counter(
        c.factors.operands[0]
        for c, choice in zip(contributions, spec.choices)
        if choice.contraction == "bias"
    )
    for contribution, choice in sorted(
        zip(contributions, spec.choices, strict=True), key=lambda pair: _ready(pair[0], at)
    ):
        total = _add(emitter, total, contribution, choice, dtype, square, kept, biases, small)
        if total is not None:
            total.meta["total"] = True  # for `schedule`: not to be put off
    if small:
        rows = emitter.call(aten.cat.default, small, 1) if len(small) > 1 else small[0]
        total = emitter.call(gramian_of_jacobian, total, rows, dtype, val=square)
    assert total is not None
    total = _in_order_of_losses(emitter, total, losses, axis, square)
    mirrored = emitter.call(aten.t.default, total, val=square)
    doubled = emitter.call(aten.add.Tensor, total, mirrored, val=square)
    gramian = emitter.call(aten.mul.Tensor, doubled, 0.5, val=square)
    gradients = _from_kept(emitter, results["gradients"], kept, losses, axis, spec)
    results = {**results, "gradients": gradients}
    emitter.output.args = ({**{key: results[key] for key in _RESULTS}, "gramian": gramian},)
    drop_dead_nodes(gm.graph)
    gm.recompile()
    return gm


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


def _in_order_of_losses(
    emitter: Emitter, total: fx.Node, losses: torch.Tensor, axis: SampleAxis, square: torch.Tensor
) -> fx.Node:
    """Rows come sample by sample; let them follow `losses.flatten()`: `[T, K]` transposes both."""
    if not axis.dim:
        return total
    others = [n for d, n in enumerate(losses.shape) if d != axis.dim]
    shape, count = [-1, *others], losses.ndim
    order = [*range(1, axis.dim + 1), 0, *range(axis.dim + 1, count)]
    rows = emitter.call(aten.unflatten.int, total, 1, shape, val=square)
    unfolded = emitter.call(aten.unflatten.int, rows, 0, shape, val=square)
    both = [*order, *(count + d for d in order)]
    moved = emitter.call(aten.permute.default, unfolded, both, val=square)
    flat = emitter.call(aten.flatten.using_ints, moved, count, -1, val=square)
    return emitter.call(aten.flatten.using_ints, flat, 0, count - 1, val=square)


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


def _add(
    emitter: Emitter,
    total: fx.Node | None,
    contribution: Contribution,
    choice: Choice,
    dtype: torch.dtype,
    square: torch.Tensor,
    kept: dict[str, list[fx.Node]],
    biases: Counter[fx.Node],
    small: list[fx.Node],
) -> fx.Node | None:
    """Add one contribution to the Gramian, as its choice says; note what is kept of it."""
    jacobians, factors = contribution.jacobians, contribution.factors
    if choice.contraction == "bias":
        return total
    if factors is not None:
        equation, one_hot, operands = factors.equation, factors.one_hot, factors.operands
        if choice.contraction == "pairs":
            count = biases.pop(operands[0], 0)
            if equation == "ko,ki->oi" and choice.parts == 1:
                return _of_outer_products(emitter, total, operands, dtype, count, square)
            pairs = (total, equation, one_hot, dtype, choice.parts, count, *operands)
            return emitter.call(gramian_of_pairs, *pairs, val=square)
        if choice.parts > 1:
            slices = (total, equation, dtype, choice.parts, *operands)
            return emitter.call(gramian_in_slices, *slices, val=square)
        jacobians = (emit_jacobian(emitter, factors, choice.kernel),)
    if choice.contraction == "pairs":
        return _of_unlike_uses(emitter, total, contribution.summands, dtype, choice, square)
    for jacobian in jacobians:
        columns = math.prod(jacobian.meta["val"].shape[1:])
        if choice.keep and columns <= _SMALL and not jacobian.meta["val"].is_complex():
            row = emitter.call(aten.reshape.default, jacobian, [-1, columns] if columns else [0, 0])
            small.append(row)
        else:
            total = emitter.call(gramian_of_jacobian, total, jacobian, dtype, val=square)
    if choice.keep:
        names = [use.parameter for use in contribution.uses]
        for name, jacobian in zip(dict.fromkeys(names) if len(jacobians) == 1 else names, jacobians):
            kept.setdefault(name, []).append(jacobian)
    return total


def _of_unlike_uses(
    emitter: Emitter,
    total: fx.Node | None,
    summands: tuple[Factors, ...],
    dtype: torch.dtype,
    choice: Choice,
    square: torch.Tensor,
) -> fx.Node | None:
    """Pairs of every use with itself, and of every two uses of one parameter."""
    for u in summands:
        pairs = (total, u.equation, u.one_hot, dtype, choice.parts, 0, *u.operands)
        total = emitter.call(gramian_of_pairs, *pairs, val=square)
        total.meta["total"] = True
    for u, v in combinations(summands, 2):
        both = ((u.equation, v.equation), (u.one_hot, v.one_hot), *u.operands, *v.operands)
        total = emitter.call(cross_gramian, total, dtype, *both, val=square)
        total.meta["total"] = True
    return total


def _of_outer_products(
    emitter: Emitter,
    total: fx.Node | None,
    operands: tuple[fx.Node, ...],
    dtype: torch.dtype,
    biases: int,
    square: torch.Tensor,
) -> fx.Node:
    """`(A Aᵀ + biases) ∘ (B Bᵀ)` as operators, so that equal halves of several uses are merged."""
    halves = []
    for node in operands:
        if node.meta["val"].dtype != dtype:
            node = emitter.call(aten.to.dtype, node, dtype)
        rows = emitter.call(aten.t.default, node)
        halves.append(emitter.call(aten.mm.default, node, rows, val=square))
    b, a = halves
    if biases:
        a = emitter.call(aten.add.Scalar, a, biases, val=square)
    if total is None:
        return emitter.call(aten.mul.Tensor, a, b, val=square)
    return emitter.call(aten.addcmul.default, total, a, b, val=square)


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
