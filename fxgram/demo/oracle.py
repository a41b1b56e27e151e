"""The check of the demo: the Gramian and a weighted gradient from one backward per loss."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn


def relative_errors(
    model: nn.Module, objective: Callable, step: Callable, x: Tensor, y: Tensor
) -> dict[str, float]:
    """Compare the compiled step with autograd in float64, for random weights of the losses.

    Returns:
        The largest difference, divided by the largest entry: of `G`, and of `wᵀJ` for the
        parameter where it is worst. `.grad` is left empty.
    """
    weights = torch.rand(len(y))
    losses, gramian = step(x, y)
    losses.backward(weights)

    double = copy.deepcopy(model).double()
    parameters = list(double.parameters())
    rows = [
        torch.autograd.grad(loss, parameters, retain_graph=True)
        for loss in objective(double, x.double(), y)
    ]
    jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    expected = (weights.double() @ jacobian).split([p.numel() for p in parameters])
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    return {
        "gramian": _relative_error(gramian, jacobian @ jacobian.T),
        "gradient": max(map(_relative_error, gradients, expected)),
    }


def _relative_error(value: Tensor | None, expected: Tensor) -> float:
    if value is None:
        return float("inf")
    difference = value.double().flatten() - expected.flatten()
    return (difference.abs().max() / expected.abs().max()).item()
