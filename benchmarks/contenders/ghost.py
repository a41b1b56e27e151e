"""Opacus' ghost clipping: norms without gradients (Li et al. 2021, arXiv 2110.05679)."""

import warnings

import torch
from torch import Tensor, nn

from benchmarks.cases import Objective
from benchmarks.contenders.contract import MAX_NORM, Run, clipped


def diagonal(model: nn.Module, objective: Objective) -> Run:
    """Return one backward for the norms and another for the clipped losses."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    # Of the first layer, whose inputs require no gradient.
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    wrapped = GradSampleModuleFastGradientClipping(model, strict=False, max_grad_norm=MAX_NORM)
    optimizer = torch.optim.SGD(model.parameters())  # Opacus calls its zero_grad in between

    def run(x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        DPTensorFastGradientClipping(wrapped, optimizer, objective(wrapped, x, y)).backward()
        norms = wrapped.per_sample_gradient_norms.square()
        return norms, clipped(norms)

    return run
