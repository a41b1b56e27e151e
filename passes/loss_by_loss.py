"""Gradients of losses that share samples: one cotangent for each loss, batched."""

from typing import Any

import torch
from torch import fx

from passes.interpretation import Interpretation
from passes.per_sample import batched_gradients
from passes.targets import has_foreign_backward
from passes.use import is_use


class LossByLoss(Interpretation):
    """Interpret the captured graph with a leaf for each use, and differentiate every loss.

    Needs no sample axis and no rules: the backward of all m losses, batched over a leading dim,
    gives `J_u [m, *parameter]` for each use u. Costs m times an ordinary backward, and the memory
    of one for `chunk` losses at a time.
    """

    def __init__(self, gm: fx.GraphModule, chunk: int):
        super().__init__(gm)
        self.chunk = chunk
        self.leaves: dict[fx.Node, torch.Tensor] = {}

    def run(self, *inputs: torch.Tensor) -> dict[str, Any]:
        *arguments, seeds, weights = inputs
        found = self.forward(arguments)
        jacobians = self.jacobians(found["losses"], seeds)
        return {
            **found,
            "cotangents": {},
            "jacobians": {n.name: j for n, j in jacobians.items()},
            "gradients": self.gradients(found["losses"], weights),
        }

    def node(self, node: fx.Node) -> Any:
        if is_use(node):
            self.leaves[node] = self.env[node.args[0]].detach().requires_grad_()
            return self.leaves[node]
        return super().node(node)

    def jacobians(self, losses: torch.Tensor, seeds: torch.Tensor) -> dict[fx.Node, Any]:
        if not losses.requires_grad:
            return {}
        chunks = torch.diag(seeds.flatten()).split(self.chunk)
        loop = any(map(has_foreign_backward, self.gm.graph.nodes))
        try:
            found = [self.backward(losses, rows, loop) for rows in chunks]
        except RuntimeError:  # some operators have no batching rule, or a wrong one
            if loop:
                raise
            found = [self.backward(losses, rows, loop=True) for rows in chunks]
        parts = zip(self.leaves, zip(*found))
        return {use: torch.cat(grads) for use, grads in parts if grads[0] is not None}

    def backward(self, losses: torch.Tensor, rows: torch.Tensor, loop: bool) -> list[Any]:
        """Gradients of every use for several weights `[r, m]` of the losses."""
        return batched_gradients([losses.flatten()], list(self.leaves.values()), [rows], loop)

    def gradients(self, losses: torch.Tensor, weights: torch.Tensor) -> dict[str, Any]:
        """One more backward, from the weights; the planner may prefer what `jacobians` gave."""
        if not losses.requires_grad:
            return {}
        leaves = list(self.leaves.values())
        grads = torch.autograd.grad(losses, leaves, weights, retain_graph=True, allow_unused=True)
        total: dict[str, torch.Tensor] = {}
        for use, grad in zip(self.leaves, grads):
            if grad is not None:
                name = use.args[0].name
                total[name] = total[name] + grad if name in total else grad
        return total
