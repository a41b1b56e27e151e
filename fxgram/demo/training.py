"""Training loops that differ only in how they fill `.grad`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn

from fxgram.demo.data import Digits


@dataclass(frozen=True)
class Point:
    """What one epoch reached."""

    epoch: int  # 0 is before the first step
    train_loss: float  # mean over the training set
    test_loss: float  # mean over the test set
    test_accuracy: float  # share in [0, 1]
    seconds: float  # spent in the steps of this epoch, evaluation not counted


def train(
    model: nn.Module,
    objective: Callable,
    fill_gradients: Callable[[Tensor, Tensor], None],
    sets: tuple[Digits, Digits],
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    on_step: Callable[[], None],
) -> Iterator[Point]:
    """Train by plain gradient steps along what `fill_gradients(x, y)` leaves in `.grad`."""
    training, _ = sets
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    yield evaluate(model, objective, sets, epoch=0, seconds=0.0)
    for epoch in range(1, epochs + 1):
        seconds = 0.0
        for x, y in training.batches(batch_size, generator):
            start = perf_counter()
            optimizer.zero_grad()
            fill_gradients(x, y)
            optimizer.step()
            seconds += perf_counter() - start
            on_step()
        yield evaluate(model, objective, sets, epoch, seconds)


@torch.no_grad()
def evaluate(
    model: nn.Module, objective: Callable, sets: tuple[Digits, Digits], epoch: int, seconds: float
) -> Point:
    """Measure the model on both sets."""
    training, test = sets
    correct = model(test.x).argmax(1) == test.y
    return Point(
        epoch=epoch,
        train_loss=objective(model, training.x, training.y).mean().item(),
        test_loss=objective(model, test.x, test.y).mean().item(),
        test_accuracy=correct.double().mean().item(),
        seconds=seconds,
    )
