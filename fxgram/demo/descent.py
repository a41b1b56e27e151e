"""Two ways to fill `.grad`: the mean of the losses, and weights computed from the Gramian."""

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor, nn
from torchjd.aggregation import UPGradWeighting


class MeanGradient:
    """Plain SGD: one backward of the mean of the losses."""

    def __init__(self, model: nn.Module, objective: Callable) -> None:
        self.model, self.objective = model, objective

    def __call__(self, x: Tensor, y: Tensor) -> None:
        self.objective(self.model, x, y).mean().backward()


class JacobianDescent:
    """Jacobian descent with UPGrad, whose weights depend on the Gramian alone.

    Source: Quinton and Rey, Jacobian Descent for Multi-Objective Optimization, arXiv 2406.16232.
    """

    def __init__(self, step: Callable) -> None:
        self.step = step
        self.weighting = UPGradWeighting()
        self.weighting_seconds = 0.0
        self.gramians: list[tuple[Tensor, Tensor]] = []

    def __call__(self, x: Tensor, y: Tensor) -> None:
        losses, gramian = self.step(x, y)
        start = perf_counter()
        weights = self.weighting(gramian)
        self.weighting_seconds += perf_counter() - start
        losses.backward(weights)
        self.gramians.append((gramian, weights))

    def pop_conflicts(self) -> dict[str, float]:
        """Return the conflict of both updates, averaged over the steps since the last call."""
        steps, self.gramians = self.gramians, []
        means = [conflict(gramian, torch.ones_like(w)) for gramian, w in steps]
        return {
            "mean gradient": sum(means) / max(len(steps), 1),
            "UPGrad": sum(conflict(*step) for step in steps) / max(len(steps), 1),
            "sum of weights": sum(w.sum().item() for _, w in steps) / max(len(steps), 1),
        }


def conflict(gramian: Tensor, weights: Tensor) -> float:
    """Return the share of the change of the losses, to first order, that is an increase.

    A small step along `-wᵀJ` changes the losses by `-G w`: with `G w = [3, 2, -1]` two losses fall
    by 5 in sum and one rises by 1, and the conflict is 1/6. UPGrad looks for weights without any.
    """
    change = gramian @ weights
    whole = change.abs().sum().clamp(min=torch.finfo(change.dtype).tiny)
    return (change.clamp(max=0).abs().sum() / whole).item()
