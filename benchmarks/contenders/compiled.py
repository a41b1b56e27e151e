"""fxgram; its own check is off, because every answer is checked here."""

from torch import Tensor, nn

import fxgram
from benchmarks.cases import Objective
from benchmarks.contenders.contract import Run, clipped


def gramian(model: nn.Module, objective: Objective, **options: str) -> Run:
    """Return a compiled step and the backward of the weighted losses."""
    step = fxgram.compile(model, objective, check=False, **options)

    def run(x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        losses, gramian = step(x, y)
        losses.backward(weights)
        return gramian, weights

    return run


def gramian_recompute(model: nn.Module, objective: Objective) -> Run:
    """Return the step that keeps no cotangents: less memory for a second backward."""
    return gramian(model, objective, retain="recompute")


def diagonal(model: nn.Module, objective: Objective) -> Run:
    """Return the squared norms alone and the backward of the clipped losses."""
    step = fxgram.compile(model, objective, check=False)

    def run(x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        losses, norms = step.diagonal(x, y)
        weights = clipped(norms)
        losses.backward(weights)
        return norms, weights

    return run
