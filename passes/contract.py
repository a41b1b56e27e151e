"""`contract`: add the Gramian to the graph, one summand for each contribution."""

from dataclasses import replace

import torch
from torch import fx

from passes.annotations import SampleAxis, facts
from passes.dead import drop_dead_nodes
from passes.driver import copy_graph
from passes.emit import emit_jacobian
from passes.factors import Contribution, Factors
from passes.kernels import gramian_of_jacobian, gramian_of_pairs
from passes.operands import Emitter
from passes.spec import Spec

aten = torch.ops.aten


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
    for contribution in contributions:
        for summand in _summands(emitter, contribution, spec, dtype, square):
            add = aten.add.Tensor
            total = summand if total is None else emitter.call(add, total, summand, val=square)
    total = _in_order_of_losses(emitter, total, losses, axis, square)
    mirrored = emitter.call(aten.t.default, total, val=square)
    doubled = emitter.call(aten.add.Tensor, total, mirrored, val=square)
    gramian = emitter.call(aten.mul.Tensor, doubled, 0.5, val=square)
    kept = ("losses", "aux", "mutated", "cotangents", "gradients")
    emitter.output.args = ({**{key: results[key] for key in kept}, "gramian": gramian},)
    drop_dead_nodes(gm.graph)
    gm.recompile()
    return gm


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
        return replace(factors, operands=tuple(mapping[n] for n in factors.operands))

    contributions = [
        replace(
            c,
            factors=c.factors and moved(c.factors),
            jacobians=tuple(mapping[n] for n in c.jacobians),
        )
        for c in facts(gm)["contributions"]
    ]
    return fx.GraphModule(gm, graph), contributions


def _summands(
    emitter: Emitter,
    contribution: Contribution,
    spec: Spec,
    dtype: torch.dtype,
    square: torch.Tensor,
) -> list[fx.Node]:
    jacobians, factors = contribution.jacobians, contribution.factors
    if factors is not None:
        if spec.choose(contribution) == "pairs":
            equation, one_hot = factors.equation, factors.one_hot
            operands = factors.operands
            return [emitter.call(gramian_of_pairs, equation, one_hot, dtype, *operands, val=square)]
        jacobians = (emit_jacobian(emitter, factors),)
    return [emitter.call(gramian_of_jacobian, j, dtype, val=square) for j in jacobians]
