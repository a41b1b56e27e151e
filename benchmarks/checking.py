"""The answer is checked before it is timed."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.cases import Objective

TOLERANCE = 2e-3  # of the largest entry: float32 sums over millions of products cost that much


class WrongAnswer(Exception):
    """What the contender computes is not the reference's."""


@dataclass(frozen=True)
class Reference:
    """Answers from autograd alone, one backward per loss; holds K copies of all gradients."""

    model: nn.Module
    objective: Objective
    batch: tuple[Tensor, Tensor]
    gramian: Tensor  # [k,l], float64

    @staticmethod
    def of(model: nn.Module, objective: Objective, batch: tuple[Tensor, Tensor]) -> "Reference":
        """Compute `J Jᵀ`.

        The products are summed in float64: over the tens of millions of parameters of AlexNet,
        float32 is off by more than what the contenders are.
        """
        losses = objective(model, *batch)
        parameters = list(model.parameters())
        rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
        gramian = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=losses.device)
        for gradients in zip(*rows, strict=True):
            flat = torch.stack([g.flatten() for g in gradients])  # [k, numel of one parameter]
            for part in flat.split(2**20, dim=1):
                gramian += part.double() @ part.double().T
        return Reference(model, objective, batch, gramian)

    def check(self, answer: Tensor, weights: Tensor, twin: nn.Module) -> float:
        """Return the error of the answer: the largest difference, relative to the largest entry.

        Args:
            answer: the Gramian [k,l], or its diagonal [k].
            weights: of the losses in the gradients, [k].
            twin: the model whose `.grad` are compared with autograd's of the weighted losses.

        Raises:
            WrongAnswer: The answer or the gradients are off by more than the tolerance.
        """
        diagonal = answer.ndim == 1
        expected = self.gramian.diagonal() if diagonal else self.gramian
        error = ((answer - expected).abs().max() / expected.abs().max()).item()
        if not error < TOLERANCE:  # not: NaN is wrong too
            what = "squared norms are" if diagonal else "Gramian is"
            raise WrongAnswer(f"the {what} off by {error:.1e} of the largest entry")
        parameters = list(self.model.parameters())
        losses = self.objective(self.model, *self.batch)
        gradients = torch.autograd.grad(losses, parameters, weights.to(losses.dtype))
        off, size = 0.0, 0.0
        for (name, p), gradient in zip(twin.named_parameters(), gradients, strict=True):
            if p.grad is None:
                raise WrongAnswer(f"{name} has no gradient")
            off += (p.grad - gradient).double().square().sum().item()
            size += gradient.double().square().sum().item()
        if not (off / size) ** 0.5 < TOLERANCE:
            raise WrongAnswer(f"the gradients are off by {(off / size) ** 0.5:.1e} of their norm")
        return error
