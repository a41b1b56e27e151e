"""Three ways to fill `.grad`; two of them compute the Gramian on the way.

Each contender is built on its own copy of the model and returns the Gramian, or None. Weights are
given, so that no time goes into finding them.
"""

from collections.abc import Callable

from torch import Tensor, nn

import fxgram
from benchmarks.cases import objective

Contender = Callable[[Tensor, Tensor, Tensor], Tensor | None]


def sgd(model: nn.Module) -> Contender:
    """Return the forward and one backward of the mean loss: the unit of all ratios."""

    def run(x: Tensor, y: Tensor, weights: Tensor) -> None:
        objective(model, x, y).mean().backward()

    return run


def fxgram_step(model: nn.Module) -> Contender:
    """Return a compiled step and the backward of the weighted losses."""
    step = fxgram.compile(model, objective)

    def run(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        losses, gramian = step(x, y)
        losses.backward(weights)
        return gramian

    return run


def torchjd_engine(model: nn.Module) -> Contender:
    """Return TorchJD's autogram engine and the backward of the weighted losses."""
    from torchjd.autogram import Engine

    engine = Engine(model, batch_dim=0)

    def run(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        losses = objective(model, x, y)
        gramian = engine.compute_gramian(losses)
        losses.backward(weights)
        return gramian

    return run


CONTENDERS: dict[str, Callable[[nn.Module], Contender]] = {
    "SGD": sgd,
    "fxgram": fxgram_step,
    "TorchJD": torchjd_engine,
}
