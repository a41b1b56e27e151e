"""TorchJD's autogram engine (Quinton & Rey 2024, arXiv 2406.16232)."""

from torch import Tensor, nn

from benchmarks.cases import Objective
from benchmarks.contenders.contract import Run


def gramian(model: nn.Module, objective: Objective) -> Run:
    """Return the engine and the backward of the weighted losses."""
    from torchjd.autogram import Engine

    engine = Engine(model, batch_dim=0)

    def run(x: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        losses = objective(model, x, y)
        gramian = engine.compute_gramian(losses)
        losses.backward(weights)
        return gramian, weights

    return run
