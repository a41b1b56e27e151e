"""The answer is checked before it is timed."""

import torch
from torch import Tensor, nn

from benchmarks.cases import objective

TOLERANCE = 2e-3  # of the largest entry: float32 sums over millions of products cost that much


class WrongGramian(Exception):
    """The contender's Gramian is not the reference's."""


def autograd_gramian(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return `J Jᵀ`, [k,l], from one backward per loss; holds K copies of all gradients.

    The products are summed in float64: over the tens of millions of parameters of AlexNet, float32
    is off by more than what the contenders are.
    """
    parameters = list(model.parameters())
    rows = [
        torch.autograd.grad(loss, parameters, retain_graph=True) for loss in objective(model, x, y)
    ]
    gramian = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=x.device)
    for gradients in zip(*rows, strict=True):
        flat = torch.stack([g.flatten() for g in gradients])  # [k, numel of one parameter]
        for part in flat.split(2**20, dim=1):
            gramian += part.double() @ part.double().T
    return gramian


def check(gramian: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest entry.

    Raises:
        WrongGramian: It is above the tolerance.
    """
    error = ((gramian - expected).abs().max() / expected.abs().max()).item()
    if not error < TOLERANCE:  # not: NaN is wrong too
        raise WrongGramian(f"the Gramian is off by {error:.1e} of its largest entry")
    return error
